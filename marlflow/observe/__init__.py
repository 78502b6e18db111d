"""Metrics output: files, consoles, plots and traces of a run."""
