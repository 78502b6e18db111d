"""Batches of experience (RLlib's SampleBatch): columns over rows, and segments.

A row is one decision of one agent; a segment is one agent's consecutive rows in one episode under one policy. A row's
next observation is the segment's next row or its bootstrap, so no observation is stored twice.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Final, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from marlflow.base.arrays import Array
from marlflow.base.errors import ColumnMissing
from marlflow.base.pickling import reduced_in_band

Column: TypeAlias = NDArray[Any]

_NOT_FOR_LOSSES = frozenset({"version", "t_env", "t_agent", "row_id", "bootstrapped_at_death"})


# A base class rather than a Protocol, because stages' annotations are checked against it before anything runs.
class TrainBatch(ABC):
    """A batch to learn from, the base of frozen dataclasses.

    Only `rows` is required: the defaults suit a dataclass whose fields are columns [N, ...].
    """

    __slots__ = ()

    count_varies: ClassVar[bool] = False
    """Whether batches of similar size may have very different counts, as with sequences of short episodes."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of agent steps."""

    @property
    def count(self) -> int:
        """Number of items that a minibatch never divides: sequences if recurrent, else rows."""
        return self.rows

    def columns_for_losses(self) -> dict[str, Column]:
        """Return the columns that losses use, [count, ...] each, without float64 and bookkeeping columns.

        They are the fields; the entries of one that is a mapping have their own names.
        """
        columns: dict[str, Column | None] = {}
        for name in _column_names(type(self)):
            value = getattr(self, name)
            columns |= value if isinstance(value, Mapping) else {name: value}
        return for_losses(columns)

    def mean_version(self) -> float:
        """Return the mean version of the acting weights; NaN without rows or versions."""
        return mean_of(getattr(self, "version", None))

    def rows_carried(self) -> int:
        """Return the number of rows begun in the previous fragment."""
        return 0

    def rows_bootstrapped_at_death(self) -> int:
        """Return the number of terminated rows whose next value is the survivors' (see `learner.advantages`)."""
        return 0

    def row_ids(self) -> Column | None:
        """Return the rows' ids in their replay buffer, [count], if any."""
        row_ids: Column | None = getattr(self, "row_id", None)
        return row_ids

    def to_tree(self) -> dict[str, Any]:
        """Return the fields as plain mappings, arrays and numbers, for checkpoints."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> TrainBatch:
        """Restore a batch from `to_tree`; raises TypeError for other fields."""
        return cls(**tree)


@cache
def _column_names(batch_class: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(batch_class))


def for_losses(columns: Mapping[str, Column | None]) -> dict[str, Column]:
    """Return columns as losses use them: bookkeeping and None removed, float64 as float32."""
    return {
        name: column.astype(np.float32) if column.dtype == np.float64 else column
        for name, column in columns.items()
        if column is not None and name not in _NOT_FOR_LOSSES
    }


def mean_of(version: Column | None) -> float:
    """Return the mean version; NaN without rows or versions."""
    return float(version.mean()) if version is not None and len(version) else math.nan


def deaths_in(columns: Mapping[str, Column]) -> int:
    """Return the number of rows marked in `bootstrapped_at_death`; 0 without that column."""
    return int(columns["bootstrapped_at_death"].sum()) if "bootstrapped_at_death" in columns else 0


IN_BAND_BYTES = 64 * 1024
"""Up to this size a batch is pickled as one string of bytes: below 100 kB Ray copies results in any case."""


BOOTSTRAPS: Final = {
    "obs": "bootstrap_obs",
    "action_mask": "bootstrap_mask",
    "state": "bootstrap_state",
    "memory": "bootstrap_memory",
}
"""The segment columns that have what follows a segment's last row, by the columns that have it for rows."""

MEMORY_COLUMNS: Final = ("memory", "memory_version", "bootstrap_memory")
"""Columns of a policy with memory."""


@dataclass(frozen=True, slots=True)
class Batch(TrainBatch):
    """Whole segments of rows of one policy.

    `columns`, [N, ...] each: `obs`, `action`, `reward` (float64, undiscounted), `behavior_logp`, `version`, `t_env`
    (env steps in the episode before the decision), `t_agent` (the agent's decisions before it), `action_mask` (bool [N,
    A], if agents have masks), `state` (if the policy's learner needs it), credited columns of infos (float64, such as
    `cost`), and those added by stages (`advantage`, `value_target`, ...).

    `segments`, [S, ...] each: `length` (rows), `terminated`, `truncated` (at most one of them), `bootstrap_obs` (after
    the last row), `bootstrap_mask` (with `action_mask`), `carried` (first row begun in the previous fragment), `agent`
    (slot), `env`, `lane`, `episode`. A segment's rows are contiguous.
    """

    RESERVED: ClassVar[frozenset[str]] = frozenset(
        {"obs", "action", "reward", "behavior_logp", "version", "t_env", "t_agent", "action_mask", "state", "memory"}
        | {"memory_version", "length", "terminated", "truncated", "carried", "episode", "lane", "slot", "agent", "env"}
        | {"bootstrap_obs", "bootstrap_mask", "bootstrap_state", "bootstrap_memory", "cost_advantage"}
        | {"gained", "value", "advantage", "value_target", "discount", "next_obs", "weight", "row_id", "now", "made_by"}
        | {"window_reward", "window_discount", "window_steps", "next", "segment", "burn_in", "priority", "present"}
        | {"next_mask", "next_state", "next_present", "mask", "valid", "trained", "following", "central"}
    )
    """Columns that workers and stages make; numbers of infos have other names."""
    made_from: ClassVar[Mapping[str, str]] = {
        "Fragment": ".gather(Concat(agent_steps=...))",
        "JointBatches": ".then(JoinSegments(learner.seats), at=learner)",
        "JointFragment": ".gather(Concat(agent_steps=...)).then(JoinSegments(learner.seats), at=learner)",
    }

    columns: Mapping[str, Array]
    segments: Mapping[str, Array]

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        arrays = [array for table in (self.columns, self.segments) for array in table.values()]
        # Objects may have classes that only Ray's pickler can pickle, such as classes defined in a script.
        if sum([array.nbytes for array in arrays]) > IN_BAND_BYTES or any(array.dtype.hasobject for array in arrays):
            return object.__reduce_ex__(self, protocol)
        return reduced_in_band(self)

    @property
    def rows(self) -> int:
        return len(self.columns["reward"])

    def columns_for_losses(self) -> dict[str, Array]:
        return for_losses(self.columns)

    def mean_version(self) -> float:
        return mean_of(self.columns["version"])

    def rows_carried(self) -> int:
        return int(self.segments["carried"].sum())

    def rows_bootstrapped_at_death(self) -> int:
        return deaths_in(self.columns)

    def __getitem__(self, name: str) -> Array:
        """Return column `name`, [N, ...], repeating segment properties per row; raises ColumnMissing."""
        if name in self.columns:
            return self.columns[name]
        if name not in self.segments:
            raise ColumnMissing(name, [*self.columns, *self.segments])
        return np.repeat(self.segments[name], self.segments["length"], axis=0)

    def ends(self) -> Array:
        """Return each segment's last row index, [S]."""
        return np.cumsum(self.segments["length"]) - 1

    def with_columns(self, **columns: Array) -> Batch:
        """Return this batch with columns [N, ...] added or replaced.

        Raises ValueError for another number of rows, and where a column with a fraction for each row, [N], would not
        stay one: losses would compute with every pair of rows.
        """
        count = len(next(iter(self.columns.values()), ()))
        for name, column in columns.items():
            shape, before = np.shape(column), self.columns.get(name)
            fractions = before is not None and before.ndim == 1 and before.dtype.kind == "f"
            if self.columns and (shape[:1] != (count,) or (fractions and len(shape) != 1)):
                expected = [count] if before is None else [count, *before.shape[1:]]
                raise ValueError(f"column {name!r} has shape {list(shape)}, and the batch needs {expected}")
        # The other columns are shared, not copied.
        return type(self)({**self.columns, **columns}, self.segments)

    def only(self, selected: Array) -> Batch:
        """Return the segments `selected` (bool [S])."""
        rows = np.repeat(selected, self.segments["length"])
        return type(self)(
            {name: column[rows] for name, column in self.columns.items()},
            {name: column[selected] for name, column in self.segments.items()},
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Concatenate batches in order."""
        if len(batches) == 1:
            return batches[0]
        return type(batches[0])(_concat(b.columns for b in batches), _concat(b.segments for b in batches))


def _concat(tables: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    rows = list(tables)
    return {name: np.concatenate([table[name] for table in rows]) for name in rows[0]}


@dataclass(frozen=True, slots=True)
class EstimatedBatch(Batch):
    """A batch with columns `value`, `advantage` and `value_target`, float32 [N] each."""

    made_from: ClassVar[Mapping[str, str]] = {
        "Batch": ".then(Advantages(...), at=learner)",
        "Fragment": ".gather(Concat(agent_steps=...)).then(Advantages(...), at=learner)",
    }


@dataclass(frozen=True, slots=True)
class Transitions(TrainBatch):
    """Independent n-step transitions drawn from a replay buffer, [B, ...] each."""

    made_from: ClassVar[Mapping[str, str]] = {
        "Fragment": "a replay (NStep(...), Insert(), and source(Draw(...), at=replay))",
        "Batch": "a replay (NStep(...), Insert(), and source(Draw(...), at=replay))",
    }

    obs: Array
    action: Array
    reward: Array
    """Discounted n-step sums."""
    discount: Array
    """Factor of the value of `next_obs`: discount**k after k steps, 0 after termination."""
    next_obs: Array
    weight: Array
    """Importance weights."""
    row_id: Array
    """Ids in the replay buffer."""
    action_mask: Array | None = None
    next_mask: Array | None = None
    version: Array | None = None
    """Versions of the acting weights."""
    infos: Mapping[str, Array] = field(default_factory=dict)
    """Columns of infos: discounted n-step sums of credited ones, such as `cost`, and each row's own of others."""

    @property
    def rows(self) -> int:
        return len(self.reward)


@dataclass(frozen=True, slots=True)
class Decisions(TrainBatch):
    """Single decisions drawn from a reservoir, without next observations, [B, ...] each."""

    made_from: ClassVar[Mapping[str, str]] = {
        "Fragment": "a reservoir (Insert(), and source(Draw(..., gives=Decisions), at=replay))",
        "Batch": "a reservoir (Insert(), and source(Draw(..., gives=Decisions), at=replay))",
    }

    obs: Array
    action: Array
    row_id: Array
    """Ids in the reservoir."""
    action_mask: Array | None = None
    version: Array | None = None
    """Versions of the acting weights."""

    @property
    def rows(self) -> int:
        return len(self.row_id)
