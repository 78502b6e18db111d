"""What every other layer stands on: errors, batches of experience, spaces and random streams."""
