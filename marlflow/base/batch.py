"""Batches of experience: columns over rows, and segments.

A row is one decision of one agent. A segment is one agent's consecutive decisions in one episode under one policy. Its
constant properties and its bootstrap, the observation after its last row, are stored once per segment. So the next
observation of a row is the segment's next row or its bootstrap, and is never stored twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from marlflow.base.errors import ColumnMissing
from marlflow.base.train_batch import TrainBatch, for_losses, mean_of

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Batch(TrainBatch):
    """Whole segments of rows of one policy.

    `columns`, [N, ...] each: `obs`, `action`, `reward` (float64, undiscounted), `behavior_logp`, `version`, `t_env`
    (env steps in the episode before the decision), `t_agent` (this agent's decisions before it), `action_mask` (bool
    [N, A], only where the agents have one), and what stages add (`advantage`, `value_target`, ...).

    `segments`, [S, ...] each: `length` (rows), `terminated`, `truncated` (at most one of them), `bootstrap_obs`,
    `bootstrap_mask` (beside `action_mask`), `carried` (its first row was begun in the fragment before), `agent` (slot),
    `env`, `lane`, `episode`. The rows of a segment are contiguous and in order.
    """

    made_from: ClassVar[Mapping[str, str]] = {"Fragment": ".gather(Concat(agent_steps=...))"}

    columns: Mapping[str, Array]
    segments: Mapping[str, Array]

    @property
    def rows(self) -> int:
        """Number of agent steps."""
        return len(self.columns["reward"])

    def columns_for_losses(self) -> dict[str, Array]:
        """Return `columns` as losses see them: without bookkeeping columns and float64."""
        return for_losses(self.columns)

    def mean_version(self) -> float:
        """Return the mean of the column `version`; NaN without rows."""
        return mean_of(self.columns["version"])

    def rows_carried(self) -> int:
        """Return the number of segments whose first row was begun in the previous fragment."""
        return int(self.segments["carried"].sum())

    def __getitem__(self, name: str) -> Array:
        """Return the column `name`, [N, ...]; a segment's property is repeated for each of its rows.

        Raises ColumnMissing if there is neither.
        """
        if name in self.columns:
            return self.columns[name]
        if name not in self.segments:
            raise ColumnMissing(name, [*self.columns, *self.segments])
        return np.repeat(self.segments[name], self.segments["length"], axis=0)

    def ends(self) -> Array:
        """Return the index of each segment's last row, [S]."""
        return np.cumsum(self.segments["length"]) - 1

    def with_columns(self, **columns: Array) -> Batch:
        """Return this batch with columns added or replaced; the others are shared."""
        return Batch({**self.columns, **columns}, self.segments)

    def only(self, keep: Array) -> Batch:
        """Return the segments selected by `keep` (bool [S])."""
        rows = np.repeat(keep, self.segments["length"])
        return Batch(
            {name: column[rows] for name, column in self.columns.items()},
            {name: column[keep] for name, column in self.segments.items()},
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Concatenate the rows of `batches`, in order."""
        if len(batches) == 1:
            return batches[0]
        return Batch(_concat(b.columns for b in batches), _concat(b.segments for b in batches))


def _concat(tables: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    rows = list(tables)
    return {name: np.concatenate([table[name] for table in rows]) for name in rows[0]}


@dataclass(frozen=True, slots=True)
class EstimatedBatch(Batch):
    """A batch whose rows have `value`, `advantage` and `value_target`, float32 [N] each."""

    made_from: ClassVar[Mapping[str, str]] = {
        "Batch": ".then(Advantages(...), at=learner)",
        "Fragment": ".gather(Concat(agent_steps=...)).then(Advantages(...), at=learner)",
    }


@dataclass(frozen=True, slots=True)
class Transitions(TrainBatch):
    """Independent n-step transitions drawn from a replay buffer, [B, ...] each.

    `reward` is the discounted n-step sum, `discount` the factor of the value of `next_obs` (discount**k for a window of
    k steps, 0 after termination), `weight` the importance weight, `row_id` the row's id in its replay buffer,
    `version` that of the weights which chose the action.
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "Fragment": "a replay (NStep(...), Insert(), and source(Draw(...), at=replay))",
        "Batch": "a replay (NStep(...), Insert(), and source(Draw(...), at=replay))",
    }

    obs: Array
    action: Array
    reward: Array
    discount: Array
    next_obs: Array
    weight: Array
    row_id: Array
    action_mask: Array | None = None
    next_mask: Array | None = None
    version: Array | None = None

    @property
    def rows(self) -> int:
        """Number of agent steps drawn."""
        return len(self.reward)
