"""What a replay of sequences hands out: runs of rows for a recurrent learner, with what it remembered before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marlflow.base.batch import Array
from marlflow.base.train_batch import TrainBatch


@dataclass(frozen=True, slots=True)
class SequenceTransitions(TrainBatch):
    """S sequences of one agent's consecutive decisions: up to B rows of burn-in each, then 1 to L rows to train on.

    Time is laid out so that the rows trained on begin at step B: burn-in stands right before them, what follows the
    last of them right behind, and steps where there is nothing are zero.

    `obs` [S, B + L + 1, ...]; `present` bool [S, B + L + 1] says where there is one. `memory` [S, ...] was remembered
    before the first that is present. Of the rows trained on, [S, L, ...] each: `trained` (bool: which there are),
    `action`, `reward` (discounted n-step sum), `discount` (what the value after the window is multiplied by, 0 after
    termination) and `following` (int64: how many steps behind step B the observation after the window stands).
    `mask` bool [S, L + 1, A] are the legal actions from step B on. `weight` [S] are importance weights, `row_id` [S]
    names the sequences in their replay, and `version` has that of each row trained on, [rows].
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "Fragment": "a replay of sequences (SplitSegments, NStep, Insert, and source(Draw(...), at=replay))",
        "Batch": "a replay of sequences (SplitSegments, NStep, Insert, and source(Draw(...), at=replay))",
    }

    obs: Array
    present: Array
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
        """Number of sequences, S."""
        return len(self.row_id)

    @property
    def rows(self) -> int:
        """Number of agent steps drawn to be trained on."""
        return len(self.version)
