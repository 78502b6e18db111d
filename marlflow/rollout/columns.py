"""The preallocated columns of one policy: written by fancy index, lane by lane, and cut into a batch at the end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.spaces import Spaces


class Segments(NamedTuple):
    """Segments of one policy: `row` of the columns, and from which to before which cell; [S] each."""

    row: Array
    start: Array
    stop: Array
    terminated: Array
    truncated: Array
    carried: Array
    episode: Array
    bootstrap_obs: Array
    bootstrap_mask: Array | None


class Columns:
    """What the actor saw and chose, [rows, capacity, ...] each; one row per lane that the policy has played."""

    def __init__(self, spaces: Spaces, capacity: int) -> None:
        self._spaces = spaces
        self.capacity = capacity
        self.lanes: Array = np.empty(0, np.int64)
        shapes = {
            "obs": (spaces.obs_shape, spaces.obs_dtype),
            "action": (spaces.action_shape, spaces.action_dtype),
            "behaviour_logp": ((), np.dtype(np.float32)),
        }
        if spaces.masked:
            shapes["action_mask"] = ((spaces.num_actions,), np.dtype(bool))
        self.data = {name: np.zeros((0, capacity, *shape), dtype) for name, (shape, dtype) in shapes.items()}

    def add(self, lanes: Array) -> Array:
        """Rows for further `lanes`; returns their numbers."""
        first = len(self.lanes)
        self.lanes = np.concatenate([self.lanes, lanes])
        for name, column in self.data.items():
            more = np.zeros((len(lanes), *column.shape[1:]), column.dtype)
            self.data[name] = np.concatenate([column, more])
        return np.arange(first, len(self.lanes))

    def widen(self, capacity: int) -> None:
        """Makes room for `capacity` cells; keeps what is there."""
        for name, column in self.data.items():
            more = np.zeros((column.shape[0], capacity - self.capacity, *column.shape[2:]), column.dtype)
            self.data[name] = np.concatenate([column, more], axis=1)
        self.capacity = capacity

    def write(self, row: Array, cell: Array, obs: Array, mask: Array | None, action: Array, logp: Array) -> None:
        """One decision for each of N lanes."""
        data = self.data
        data["obs"][row, cell] = obs
        data["action"][row, cell] = action
        data["behaviour_logp"][row, cell] = logp
        if mask is not None:
            data["action_mask"][row, cell] = mask

    def carry(self, row: Array, cell: Array) -> None:
        """Moves the open cells to the front."""
        for column in self.data.values():
            column[row, 0] = column[row, cell]


def ragged(column: Array, lengths: Array) -> Array:
    """The first `lengths[i]` cells of every row `i` of `column` [K, capacity, ...], one after the other."""
    if len(lengths) and (lengths == lengths[0]).all():
        cut = column[:, : lengths[0]]
        return np.ascontiguousarray(cut).reshape(-1, *column.shape[2:]).copy()
    return np.asarray(column[np.arange(column.shape[1]) < lengths[:, None]])
