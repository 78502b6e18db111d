"""Runtimes, which run workers, learners and replays in processes, and the checkpoints of a run."""
