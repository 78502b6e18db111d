"""Sequences drawn from a replay buffer, for recurrent learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from marlflow.base.arrays import Array
from marlflow.batches.train_batch import TrainBatch


@dataclass(frozen=True, slots=True)
class SequenceTransitions(TrainBatch):
    """S sequences of an agent's consecutive decisions: up to B rows of burn-in, then 1 to L trained rows.

    Trained rows begin at step B; burn-in ends right before it. Missing steps are zero. Shapes are [S, L, ...], by
    trained row, unless given.
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "Fragment": "a replay of sequences (SplitSegments, NStep, Insert, and source(Draw(...), at=replay))",
        "Batch": "a replay of sequences (SplitSegments, NStep, Insert, and source(Draw(...), at=replay))",
    }

    obs: Array
    """[S, B + L + 1, ...]; the last observation follows the trained rows."""
    valid: Array
    """bool [S, B + L + 1]: which observations exist."""
    memory: Array
    """[S, ...]: recurrent state before the first valid step."""
    trained: Array
    """bool: which rows exist."""
    action: Array
    reward: Array
    """Discounted n-step sums."""
    discount: Array
    """Of the value after the n steps; 0 after termination."""
    following: Array
    """int64: the step after the n steps, counted from B."""
    weight: Array
    """[S]: importance weights."""
    row_id: Array
    """[S]: ids in the replay buffer."""
    version: Array
    """[rows]: versions of the acting weights."""
    mask: Array | None = None
    """bool [S, L + 1, A]: legal actions from step B."""
    infos: Mapping[str, Array] = field(default_factory=dict)
    """Columns of infos, as in Transitions."""

    @property
    def count(self) -> int:
        return len(self.row_id)

    @property
    def rows(self) -> int:
        return len(self.version)
