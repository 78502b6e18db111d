"""The checks of an experiment before it runs, in phases."""
