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
    """What the actor saw and chose, [rows, capacity, ...] each; one row per lane that the policy plays."""

    def __init__(self, spaces: Spaces) -> None:
        self._row_of: dict[int, int] = {}
        # Views of `data` over rows x capacity: numpy writes by one index several times as fast as by two.
        self._flat: dict[str, Array] = {}
        shapes = {
            "obs": (spaces.obs_shape, spaces.obs_dtype),
            "action": (spaces.action_shape, spaces.action_dtype),
            "behaviour_logp": ((), np.dtype(np.float32)),
        }
        if spaces.masked:
            shapes["action_mask"] = ((spaces.num_actions,), np.dtype(bool))
        self.data = {name: np.zeros((0, 0, *shape), dtype) for name, (shape, dtype) in shapes.items()}

    @property
    def lanes(self) -> Array:
        """The lane of each row."""
        return np.fromiter(self._row_of, np.int64, len(self._row_of))

    def row_of(self, lane: int) -> int:
        """The row of `lane`."""
        return self._row_of[lane]

    def add(self, lane: int) -> int:
        """A row for one more lane."""
        row = self._row_of[lane] = len(self._row_of)
        rows, capacity = self.data["behaviour_logp"].shape
        if row >= rows:
            self._resize(max(8, 2 * rows), capacity)
        return row

    def widen(self, capacity: int) -> None:
        """Makes room for `capacity` cells; keeps what is there."""
        rows, present = self.data["behaviour_logp"].shape
        if capacity > present:
            self._resize(rows, capacity)

    def _resize(self, rows: int, capacity: int) -> None:
        for name, column in self.data.items():
            larger = np.zeros((rows, capacity, *column.shape[2:]), column.dtype)
            larger[: column.shape[0], : column.shape[1]] = column
            self.data[name] = larger
            self._flat[name] = larger.reshape(-1, *column.shape[2:])

    def write(self, row: Array, cell: Array, obs: Array, mask: Array | None, action: Array, logp: Array) -> None:
        """One decision for each of N lanes."""
        flat = self._flat
        at = row * self.data["behaviour_logp"].shape[1] + cell
        flat["obs"][at] = obs
        flat["action"][at] = action
        flat["behaviour_logp"][at] = logp
        if mask is not None:
            flat["action_mask"][at] = mask

    def carry(self, row: Array, cell: Array) -> None:
        """Moves the open cells to the front."""
        for column in self.data.values():
            column[row, 0] = column[row, cell]


def ragged(column: Array, lengths: Array) -> Array:
    """The first `lengths[i]` cells of every row `i` of `column` [K, capacity, ...], one after the other."""
    if len(lengths) and (lengths == lengths[0]).all():
        return np.array(column[:, : lengths[0]]).reshape(-1, *column.shape[2:])
    return np.asarray(column[np.arange(column.shape[1]) < lengths[:, None]])
