"""Learners: parameters, losses, optimizers, minibatches and data-parallel training."""
