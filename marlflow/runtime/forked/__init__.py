"""Ray's workers as forks of one process that has imported PyTorch and marlflow already."""
