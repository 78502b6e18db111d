"""Algorithms, one module each: settings, losses and plan."""
