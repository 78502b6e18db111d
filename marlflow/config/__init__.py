"""Compose and check an experiment."""
