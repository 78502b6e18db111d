"""What a learner wants to know of rows beside what happened: advantages and value targets."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from marlflow.base.batch import Array, Batch, EstimatedBatch
from marlflow.losses.advantages import generalized_advantage_estimation

_SMALLEST_SPREAD = 1e-8


class Critic(Protocol):
    """What estimates the return from an observation on; a learner is one."""

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """Values of `obs` [N, ...], after `memory` [N, ...] if it is recurrent, float32 [N]."""
        ...


def advantages(batch: Batch, learner: Critic, discount: float, gae_lambda: float) -> EstimatedBatch:
    """`batch` with columns `value`, `advantage` and `value_target` (float32 [N]) by the learner's present critic."""
    value, next_value = values_around(batch, learner)
    # Segments stand behind each other on one time axis; lambda 0 at their ends keeps them apart.
    lambdas = np.full(batch.rows, gae_lambda)
    lambdas[batch.ends()] = 0.0
    r_t = torch.from_numpy(batch.columns["reward"].astype(np.float64))
    v_tm1, v_t = (torch.from_numpy(column.astype(np.float64)) for column in (value, next_value))
    discount_t = torch.full_like(r_t, discount)
    estimate = generalized_advantage_estimation(r_t, discount_t, torch.from_numpy(lambdas), v_tm1, v_t)
    found = {
        "value": value,
        "advantage": estimate.numpy().astype(np.float32),
        "value_target": (estimate + v_tm1).numpy().astype(np.float32),
    }
    return EstimatedBatch({**batch.columns, **found}, batch.segments)


def values_around(batch: Batch, learner: Critic) -> tuple[Array, Array]:
    """The present critic's values of each row's observation and of what followed it, float32 [N] each.

    A segment that terminated is followed by value 0, any other by the value of its `bootstrap_obs`. Rows that have a
    `memory` are valued after it: what was remembered when they were decided, which an older version may have made.
    """
    ends, follows = batch.ends(), ~batch.segments["terminated"]
    value = learner.values(batch.columns["obs"], batch.columns.get("memory"))
    after = np.zeros(len(ends), np.float32)
    recalled = batch.segments.get("bootstrap_memory")
    recalled = None if recalled is None else recalled[follows]
    after[follows] = learner.values(batch.segments["bootstrap_obs"][follows], recalled)
    next_value = np.roll(value, -1)
    next_value[ends] = after
    return value, next_value


def normalized(batch: EstimatedBatch) -> EstimatedBatch:
    """`batch` with its `advantage` column shifted to mean 0 and scaled to standard deviation 1, over all rows."""
    if not batch.rows:
        return batch
    advantage = batch.columns["advantage"].astype(np.float64)
    spread = advantage.std() + _SMALLEST_SPREAD
    scaled = ((advantage - advantage.mean()) / spread).astype(np.float32)
    return EstimatedBatch({**batch.columns, "advantage": scaled}, batch.segments)
