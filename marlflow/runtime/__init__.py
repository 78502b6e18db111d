"""Where a plan's workers, learners and replays run."""
