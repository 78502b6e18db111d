"""The Ray runtime: workers, learners and replays are actors."""
