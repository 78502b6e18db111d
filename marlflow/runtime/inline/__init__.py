"""The in-process runtime: one process, one thread."""
