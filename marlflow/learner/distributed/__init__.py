"""Learners of several processes: a leader with followers, or replicas on the rollout workers."""
