"""What lies in the folder of a run: checkpoints and their members, its state, and the runs that come with marlflow."""
