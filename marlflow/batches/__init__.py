"""Batches of experience: rows, sequences and transitions of one policy or of several, and tokens."""
