"""Runtimes: workers, learners and replays in processes, and checkpoints."""
