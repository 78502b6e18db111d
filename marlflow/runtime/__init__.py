"""Runtimes: workers, learners and replays, in one process or in processes of Ray."""
