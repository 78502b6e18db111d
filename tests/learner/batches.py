"""Batches of columns that a test makes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import TrainBatch, for_losses


@dataclass(frozen=True)
class Columns(TrainBatch):
    """A batch of these columns, [N, ...] each."""

    columns: Mapping[str, Any]

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def columns_for_losses(self) -> dict[str, Array]:
        return for_losses(self.columns)


def ppo_rows(count: int, observations: int = 4, actions: int = 3, seed: int = 0) -> Columns:
    """Rows as PPO learns from with Discrete actions."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        drawn: Array = random.standard_normal(shape).astype(np.float32)
        return drawn

    return Columns(
        {
            "obs": normal(count, observations),
            "action": random.integers(0, actions, count),
            "behavior_logp": -1.1 + 0.1 * normal(count),
            "advantage": normal(count),
            "value_target": normal(count),
            "value": normal(count),
        }
    )
