"""Rows that stay where they were made: one shard for each of several replicas of a learner.

Each replica has the rows of its own rollout worker, and never another's. All agree on how many rows each has, and so on
how many of them are in each minibatch; which ones, each replica chooses itself (see divisions.ShardDivision).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.base.batch import Array, Batch, EstimatedBatch


@dataclass(frozen=True, slots=True)
class ShardedBatch(EstimatedBatch):
    """The rows of several shards, one shard after the other, `shards` agent steps each."""

    shards: tuple[int, ...] = ()


def sharded(batches: Sequence[Batch]) -> ShardedBatch:
    """The batches as one that knows where each begins; batches without rows may lack columns that the others have."""
    whole = Batch.concat([batch for batch in batches if batch.rows] or batches[:1])
    return ShardedBatch(whole.columns, whole.segments, tuple(batch.rows for batch in batches))


def no_rows() -> Batch:
    """The shard of a worker that made no rows, so that it can take part where all have to."""
    none, numbers, no = np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, bool)
    columns: dict[str, Array] = {
        "obs": none,
        "action": none,
        "reward": np.zeros(0),
        "behavior_logp": none,
        "version": numbers,
    }
    segments: dict[str, Array] = {
        "length": numbers,
        "terminated": no,
        "truncated": no,
        "bootstrap_obs": none,
        "carried": no,
    }
    return Batch(columns, segments)
