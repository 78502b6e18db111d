"""Shared foundations: errors, batches of experience, spaces and random streams."""
