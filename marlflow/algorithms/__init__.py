"""Algorithms, one file each: config, loss and plan."""
