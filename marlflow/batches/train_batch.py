"""The interface of training batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[Any]

_NOT_FOR_LOSSES = frozenset({"version", "t_env", "t_agent", "row_id", "bootstrapped_at_death"})


# A base class rather than a Protocol, because stages' annotations are checked against it before anything runs.
class TrainBatch(ABC):
    """A batch to learn from, the base of frozen dataclasses.

    Only `rows` is required: the defaults suit a dataclass whose fields are columns [N, ...].
    """

    __slots__ = ()

    count_varies: ClassVar[bool] = False
    """Whether batches of about as many rows may have very different counts, as sequences of short episodes have."""

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
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

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


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def deaths_in(columns: Mapping[str, Column]) -> int:
    """Return the number of rows marked in `bootstrapped_at_death`; 0 without that column."""
    return int(columns["bootstrapped_at_death"].sum()) if "bootstrapped_at_death" in columns else 0
