"""Columns over rows: the one form in which experience exists.

A row is one decision of one agent. Rows stand in segments: one agent's consecutive decisions in one episode under one
policy. What is the same for all rows of a segment is stored once for the segment; what is seen after its last row is
the segment's bootstrap. So the observation after a row is the segment's next row or its bootstrap, never stored twice.
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

    `columns`, [N, ...] each: `obs`, `action`, `reward` (float64, undiscounted), `behaviour_logp`, `version`, `t_env`
    (env steps in the episode before the decision), `t_agent` (this agent's decisions before it), `action_mask` (bool
    [N, A], only where the agents have one), and what stages add (`advantage`, `value_target`, ...).

    `segments`, [S, ...] each: `length` (rows), `terminated`, `truncated` (at most one of them), `bootstrap_obs`,
    `bootstrap_mask` (beside `action_mask`), `carried` (its first row was begun in the fragment before), `agent` (slot),
    `copy`, `lane`, `episode`. The rows of a segment are neighbours, in order; segments follow each other.
    """

    made_from: ClassVar[Mapping[str, str]] = {"Fragment": ".gather(Concat(agent_steps=...))"}

    columns: Mapping[str, Array]
    segments: Mapping[str, Array]

    @property
    def rows(self) -> int:
        """Number of agent steps."""
        return len(self.columns["reward"])

    def columns_for_losses(self) -> dict[str, Array]:
        """`columns` without those that only say where rows are from; no float64."""
        return for_losses(self.columns)

    def mean_version(self) -> float:
        """The mean of the column `version`; NaN if there are no rows."""
        return mean_of(self.columns["version"])

    def rows_carried(self) -> int:
        """Number of segments whose first row was begun in the fragment before."""
        return int(self.segments["carried"].sum())

    def __getitem__(self, name: str) -> Array:
        """The column `name`, [N, ...]; a segment's property is repeated for each of its rows.

        Raises ColumnMissing if there is neither.
        """
        if name in self.columns:
            return self.columns[name]
        if name not in self.segments:
            raise ColumnMissing(name, [*self.columns, *self.segments])
        return np.repeat(self.segments[name], self.segments["length"], axis=0)

    def ends(self) -> Array:
        """The index of each segment's last row, [S]."""
        return np.cumsum(self.segments["length"]) - 1

    def with_columns(self, **columns: Array) -> Batch:
        """This batch with columns added or replaced; the others are shared."""
        return Batch({**self.columns, **columns}, self.segments)

    def only(self, keep: Array) -> Batch:
        """The segments for which `keep` (bool [S]) holds."""
        rows = np.repeat(keep, self.segments["length"])
        return Batch(
            {name: column[rows] for name, column in self.columns.items()},
            {name: column[keep] for name, column in self.segments.items()},
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """All rows of `batches`, in order."""
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
    """What a replay hands out: independent n-step transitions, [B, ...] each.

    `reward` is the discounted n-step sum, `discount` what the value of `next_obs` is multiplied by (discount**k for a
    window of k steps, 0 after termination), `weight` the importance weight, `row_id` names the row in its replay,
    `version` is that of the policy which chose the action.
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
