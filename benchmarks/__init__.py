"""Speed and learning, each figure a ratio to something measured in the same run."""
