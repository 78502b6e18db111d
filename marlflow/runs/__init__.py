"""Files of a run's folder: checkpoints and their members, the run's state; and the runs that come with marlflow."""
