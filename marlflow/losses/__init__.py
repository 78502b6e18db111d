"""Losses and estimators as pure functions of tensors; the time of a quantity is in its name."""
