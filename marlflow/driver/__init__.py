"""Runs a checked experiment: rounds, stop conditions, checkpoints, faults, metrics."""
