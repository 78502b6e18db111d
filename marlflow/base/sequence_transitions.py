"""Sequences drawn from a replay buffer, for recurrent learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marlflow.base.batch import Array
from marlflow.base.train_batch import TrainBatch


@dataclass(frozen=True, slots=True)
class SequenceTransitions(TrainBatch):
    """S sequences of an agent's consecutive decisions: up to B rows of burn-in, then 1 to L trained rows.

    Trained rows begin at step B; burn-in ends right before it. Missing steps are zero.

    `obs` [S, B + L + 1, ...], the last being the observation after the rows; `valid` bool [S, B + L + 1]. `memory` [S,
    ...] is the recurrent state before the first valid step. Per trained row, [S, L, ...] each: `trained` (bool: the row
    exists), `action`, `reward` (discounted n-step sum), `discount` (of the value after n steps, 0 after termination),
    `following` (int64: the step after the n steps, counted from B). `mask` bool [S, L + 1, A]: legal actions from step
    B. `weight` [S]: importance weights. `row_id` [S]: ids in the replay buffer. `version` [rows]: by trained row.
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "Fragment": "a replay of sequences (SplitSegments, NStep, Insert, and source(Draw(...), at=replay))",
        "Batch": "a replay of sequences (SplitSegments, NStep, Insert, and source(Draw(...), at=replay))",
    }

    obs: Array
    valid: Array
    memory: Array
    trained: Array
    action: Array
    reward: Array
    discount: Array
    following: Array
    weight: Array
    row_id: Array
    version: Array
    mask: Array | None = None

    @property
    def count(self) -> int:
        return len(self.row_id)

    @property
    def rows(self) -> int:
        return len(self.version)
