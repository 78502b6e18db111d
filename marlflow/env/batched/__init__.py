"""Environments that step many at once: their protocol, and batched versions of PettingZoo environments."""

from marlflow.env.batched.protocol import BatchedEnv, BatchedStep, SnapshotEnv

__all__ = ["BatchedEnv", "BatchedStep", "SnapshotEnv"]
