"""Sequences of rows, for a learner that must see them in their order: of a recurrent network.

A segment is cut into sequences of up to a fixed length; none crosses a segment's end, and each row is in exactly one.
Each comes with what was remembered before its first row, so that a network goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marlflow.base.batch import Array, EstimatedBatch
from marlflow.base.train_batch import TrainBatch, for_losses


@dataclass(frozen=True, slots=True)
class Sequences(TrainBatch):
    """S sequences of up to T rows each, with their estimates.

    `columns` are those of an EstimatedBatch, [S, T, ...] each, zero behind a sequence's last row; `present` (bool
    [S, T]) says where there is a row. `memory` [S, ...] is what was remembered before the first. `carried` (bool [S]):
    the first was begun in the fragment before.
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "EstimatedBatch": ".then(CutSequences(length=...), at=learner)",
        "Batch": ".then(Advantages(...), at=learner).then(CutSequences(length=...), at=learner)",
        "Fragment": (
            ".gather(Concat(agent_steps=...)).then(Advantages(...), at=learner)"
            ".then(CutSequences(length=...), at=learner)"
        ),
    }

    columns: Mapping[str, Array]
    present: Array
    memory: Array
    carried: Array

    @property
    def count(self) -> int:
        """Number of sequences, S."""
        return len(self.present)

    @property
    def rows(self) -> int:
        """Number of agent steps."""
        return int(np.count_nonzero(self.present))

    @property
    def version(self) -> Array:
        """The version of each row, [rows]."""
        version: Array = self.columns["version"][self.present]
        return version

    @property
    def weight(self) -> Array:
        """The weight of each row, float32 [S, T]: a mean over sequences of weighted sums is then a mean over rows.

        It is the number of sequences for each row, the same for all: of the whole, not of a minibatch of it. So a loss
        of a few sequences is a mean over them, and those of several shares add up, however long their sequences are.
        """
        return self.present * np.float32(self.count / max(1, self.rows))

    def columns_for_losses(self) -> dict[str, Array]:
        """`columns`, `present`, `memory` and `weight`; no float64."""
        return for_losses({**self.columns, "present": self.present, "memory": self.memory, "weight": self.weight})

    def rows_carried(self) -> int:
        """Number of sequences whose first row was begun in the fragment before."""
        return int(self.carried.sum())


def cut_sequences(batch: EstimatedBatch, length: int) -> Sequences:
    """All rows of `batch`, which has a column `memory`, in sequences of `length` rows, or less at a segment's end."""
    rows_of = batch.segments["length"]
    counts = -(-rows_of // length)
    offset = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * length  # in its segment
    first = np.repeat(np.cumsum(rows_of) - rows_of, counts) + offset
    at = first[:, None] + np.arange(length)
    present = at < (first + np.repeat(rows_of, counts) - offset)[:, None]
    at[~present] = 0
    columns = {name: column[at] for name, column in batch.columns.items() if name != "memory"}
    for column in columns.values():
        column[~present] = 0
    carried = np.repeat(batch.segments["carried"], counts) & (offset == 0)
    return Sequences(columns, present, batch.columns["memory"][first], carried)
