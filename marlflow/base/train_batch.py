"""The interface of training batches.

A base class and not a Protocol, because stages' annotations are checked against it before anything runs, and because a
batch of another kind has to say little: most of it follows from its fields.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[Any]

_NOT_FOR_LOSSES = frozenset({"version", "t_env", "t_agent", "row_id"})


class TrainBatch(ABC):
    """A batch to learn from: a frozen dataclass derives from it, and is not registered anywhere.

    `rows` has to be given. The other methods have defaults for a dataclass whose fields are columns [N, ...], one entry
    for each row.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of agent steps."""

    @property
    def count(self) -> int:
        """Number of items that a minibatch takes or leaves as a whole: sequences if recurrent, else rows."""
        return self.rows

    def columns_for_losses(self) -> dict[str, Column]:
        """Return the columns that losses see, [count, ...] each: no float64, nothing about where rows are from."""
        return for_losses({field.name: getattr(self, field.name) for field in fields(self)})  # type: ignore[arg-type]

    def mean_version(self) -> float:
        """Return the mean version of the weights that chose the rows; NaN without rows, or if it is not known."""
        return mean_of(getattr(self, "version", None))

    def rows_carried(self) -> int:
        """Return the number of rows that were begun in the previous fragment."""
        return 0

    def row_ids(self) -> Column | None:
        """Return the ids of the rows in their replay, [count]; None if they are not from a replay."""
        found: Column | None = getattr(self, "row_id", None)
        return found

    def to_tree(self) -> dict[str, Any]:
        """Return the fields as plain mappings, arrays and numbers, to save a batch that waits for its learner."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> TrainBatch:
        """Return the batch that `to_tree` was called on; raises TypeError for a tree with other fields."""
        return cls(**tree)


def for_losses(columns: Mapping[str, Column | None]) -> dict[str, Column]:
    """Return the columns for losses: without None and bookkeeping columns, float32 in place of float64."""
    return {
        name: column.astype(np.float32) if column.dtype == np.float64 else column
        for name, column in columns.items()
        if column is not None and name not in _NOT_FOR_LOSSES
    }


def mean_of(version: Column | None) -> float:
    """Return the mean of the versions of rows; NaN without rows or versions."""
    return float(version.mean()) if version is not None and len(version) else math.nan


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
