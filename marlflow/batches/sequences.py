"""Sequences of one agent's rows for recurrent learners: cut from segments, or drawn from a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import EstimatedBatch, TrainBatch, deaths_in, for_losses


@dataclass(frozen=True, slots=True)
class Sequences(TrainBatch):
    """S sequences of up to T rows each, with their estimates."""

    made_from: ClassVar[Mapping[str, str]] = {
        "EstimatedBatch": ".then(CutSequences(length=...), at=learner)",
        "Batch": ".then(Advantages(...), at=learner).then(CutSequences(length=...), at=learner)",
        "Fragment": (
            ".gather(Concat(agent_steps=...)).then(Advantages(...), at=learner)"
            ".then(CutSequences(length=...), at=learner)"
        ),
    }

    count_varies: ClassVar[bool] = True

    columns: Mapping[str, Array]
    """The columns of an EstimatedBatch, [S, T, ...] each; zero where not valid."""
    valid: Array
    """bool [S, T]: which rows exist."""
    memory: Array
    """[S, ...]: recurrent state before the first row."""
    carried: Array
    """bool [S]: whether the first row was begun in the previous fragment."""

    @property
    def count(self) -> int:
        return len(self.valid)

    @property
    def rows(self) -> int:
        return int(np.count_nonzero(self.valid))

    @property
    def version(self) -> Array:
        """Version of each row's weights, [rows]."""
        version: Array = self.columns["version"][self.valid]
        return version

    @property
    def weight(self) -> Array:
        """Weight of each row, float32 [S, T]: count / rows, also within minibatches."""
        # Losses of minibatches are then means over sequences, and losses of several shares add up.
        return self.valid * np.float32(self.count / max(1, self.rows))

    def columns_for_losses(self) -> dict[str, Array]:
        return for_losses({**self.columns, "valid": self.valid, "memory": self.memory, "weight": self.weight})

    def rows_carried(self) -> int:
        return int(self.carried.sum())

    def rows_bootstrapped_at_death(self) -> int:
        return deaths_in(self.columns)


def cut_sequences(batch: EstimatedBatch, length: int) -> Sequences:
    """Cut `batch`, which has a `memory` column, into sequences of `length` rows, shorter at segment ends."""
    rows_of = batch.segments["length"]
    # Divides rounding up.
    counts = -(-rows_of // length)
    # Position of each sequence's first row within its segment.
    offset = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * length
    first = np.repeat(np.cumsum(rows_of) - rows_of, counts) + offset
    at = first[:, None] + np.arange(length)
    valid = at < (first + np.repeat(rows_of, counts) - offset)[:, None]
    # Any valid index will do: the gathered rows are zeroed below.
    at[~valid] = 0
    columns = {name: column[at] for name, column in batch.columns.items() if name != "memory"}
    for column in columns.values():
        column[~valid] = 0
    carried = np.repeat(batch.segments["carried"], counts) & (offset == 0)
    return Sequences(columns, valid, batch.columns["memory"][first], carried)


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
    """The discount of the value after the n steps; 0 after termination."""
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
