"""Torch functions compiled by XLA: tracing, the table of operators, optimizers and the compiled update of a learner."""
