"""Rows that stay where they were made: how shards of rows, one for each of several replicas, make up minibatches.

Each replica has the rows of its own rollout worker, and never another's. All agree on how many rows each has, and so on
how many of them it has in each minibatch; which ones, it chooses itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from marlflow.base.batch import Array, Batch, EstimatedBatch
from marlflow.base.random import key


@dataclass(frozen=True, slots=True)
class ShardedBatch(EstimatedBatch):
    """The rows of several shards, one shard after the other, `shards` agent steps each."""

    shards: tuple[int, ...] = ()


def sharded(batches: Sequence[Batch]) -> ShardedBatch:
    """The batches as one that knows where each begins; those without rows may lack columns that the others have."""
    whole = Batch.concat([batch for batch in batches if batch.rows] or batches[:1])
    return ShardedBatch(whole.columns, whole.segments, tuple(batch.rows for batch in batches))


def no_rows() -> Batch:
    """The shard of a worker that made none, so that it can take part where all have to."""
    none, numbers, no = np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, bool)
    columns: dict[str, Array] = {
        "obs": none,
        "action": none,
        "reward": np.zeros(0),
        "behaviour_logp": none,
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


@dataclass(frozen=True, slots=True)
class Division:
    """The rows of shards (`rows` has how many are in each) in `parts` minibatches; those of the shards `own` are here.

    Rows are dealt to the minibatches in turn, each shard going on where the one before it stopped. So a minibatch has
    as many rows as if all were in one place, and about as many of each shard as its share of all rows.
    """

    rows: Sequence[int]
    own: range
    parts: int

    def sizes(self) -> list[list[int]]:
        """How many rows of each shard are in each minibatch, [parts][shards]."""
        firsts = list(accumulate(self.rows[:-1], initial=0))
        return [
            [
                rows // self.parts + ((part - first) % self.parts < rows % self.parts)
                for first, rows in zip(firsts, self.rows, strict=True)
            ]
            for part in range(self.parts)
        ]

    def order(self, seed: int) -> Tensor:
        """The own rows by number, those of the first minibatch first; each shard's are shuffled by themselves."""
        if self.parts == 1:
            return torch.arange(sum(self.rows[shard] for shard in self.own))
        sizes, first, shuffled = self.sizes(), 0, []
        for shard in self.own:
            generator = torch.Generator().manual_seed(key(seed, shard))
            order = torch.randperm(self.rows[shard], generator=generator) + first
            shuffled.append(order.split([part[shard] for part in sizes]))
            first += self.rows[shard]
        return torch.cat([piece for part in zip(*shuffled, strict=True) for piece in part])
