"""Leagues: populations of policies and their frozen versions that play, are rated, and learn from each other."""
