"""Rollouts as one compiled call: environments, actors and resets of a whole fragment are one program of XLA."""
