"""Data-parallel learners: a leader with followers, or replicas on the rollout workers."""
