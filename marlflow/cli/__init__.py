"""The command line of marlflow."""
