"""Trained policies of finished runs: load them and act."""
