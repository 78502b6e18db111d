"""Benchmarks of speed and learning; each result is a ratio to a measurement in the same run."""
