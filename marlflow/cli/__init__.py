"""The commands of marlflow."""
