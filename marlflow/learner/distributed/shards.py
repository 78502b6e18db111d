"""Sharded batches: each replica of a learner holds the rows of its own rollout worker only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch, EstimatedBatch


@dataclass(frozen=True, slots=True)
class ShardedBatch(EstimatedBatch):
    """The rows of several shards, concatenated; `shards` has the agent steps of each."""

    shards: tuple[int, ...] = ()


def sharded(batches: Sequence[Batch]) -> ShardedBatch:
    """Concatenate batches, one shard each."""
    # Empty batches are left out, because they may lack columns that the others have.
    whole = Batch.concat([batch for batch in batches if batch.rows] or batches[:1])
    return ShardedBatch(whole.columns, whole.segments, tuple(batch.rows for batch in batches))


def no_rows() -> Batch:
    """Return an empty shard, for a worker without rows in a collective update."""
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
