"""Runtimes: workers, learners and replays, in one process or in those of Ray."""
