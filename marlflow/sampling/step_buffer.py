"""The rollout buffer of one policy: preallocated columns, cut into batches.

Rewards and segments are in `segment_builder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from marlflow.base.arrays import Array


class Segments(NamedTuple):
    """One policy's segments: `row` in the columns, cells `start` to `stop` (exclusive); [S] each.

    `bootstrap` has observation and memory after the last row, by column.
    """

    row: Array
    start: Array
    stop: Array
    terminated: Array
    truncated: Array
    carried: Array
    episode: Array
    bootstrap: Mapping[str, Array]

    def take(self, order: Array) -> Segments:
        """Select segments by index."""
        bootstrap = {name: column[order] for name, column in self.bootstrap.items()}
        return Segments._make([*(column[order] for column in self[:7]), bootstrap])

    @staticmethod
    def concat(parts: Sequence[Segments]) -> Segments:
        """Concatenate `parts`."""
        columns = zip(*(part[:7] for part in parts), strict=True)
        bootstrap = {n: np.concatenate([part.bootstrap[n] for part in parts]) for n in parts[0].bootstrap}
        return Segments._make([*map(np.concatenate, columns), bootstrap])


class StepBuffer:
    """The observations and actions of a rollout buffer (SB3's RolloutBuffer), [rows, capacity, ...] each."""

    def __init__(
        self,
        seen: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]],
        action: tuple[tuple[int, ...], np.dtype[np.generic]],
    ) -> None:
        self._row_of: dict[int, int] = {}
        # By lane, for `rows_of`; -1 for lanes without a row yet.
        self._rows = np.zeros(0, np.int64)
        shapes = {**seen, "action": action, "behavior_logp": ((), np.dtype(np.float32))}
        self.data = {name: np.zeros((0, 0, *shape), dtype) for name, (shape, dtype) in shapes.items()}
        # Flat views of `data`: numpy writes with one index array several times as fast as with two.
        self._flat = {name: np.zeros((0, *shape), dtype) for name, (shape, dtype) in shapes.items()}
        self.rows = self.capacity = 0

    @property
    def lanes(self) -> Array:
        """The lane of each row."""
        return np.fromiter(self._row_of, np.int64, len(self._row_of))

    def row(self, lane: int) -> int:
        """Return the row of `lane`, allocated if new."""
        row = self._row_of.setdefault(lane, len(self._row_of))
        if row >= self.rows:
            # Doubling keeps the cost of growth linear in the number of lanes.
            self._resize(max(8, 2 * self.rows), self.capacity)
        return row

    def rows_of(self, lanes: Array) -> Array:
        """Return the rows of `lanes`, int64 [N]; new ones are allocated."""
        missing = int(lanes.max(initial=-1)) + 1 - len(self._rows)
        if missing > 0:
            self._rows = np.pad(self._rows, (0, missing), constant_values=-1)
        rows: Array = self._rows[lanes]
        if (rows < 0).any():
            new = np.unique(lanes[rows < 0])
            self._rows[new] = [self.row(lane) for lane in new.tolist()]
            rows = self._rows[lanes]
        return rows

    def widen(self, capacity: int) -> None:
        """Grow to `capacity` cells per row."""
        if capacity > self.capacity:
            self._resize(self.rows, capacity)

    def _resize(self, rows: int, capacity: int) -> None:
        for name, column in self.data.items():
            larger = np.zeros((rows, capacity, *column.shape[2:]), column.dtype)
            larger[: self.rows, : self.capacity] = column
            self.data[name] = larger
            self._flat[name] = larger.reshape(-1, *column.shape[2:])
        self.rows, self.capacity = rows, capacity

    def write(self, row: Array, cell: Array, seen: Mapping[str, Array], action: Array, logp: Array) -> None:
        """Write one step of N lanes."""
        flat = self._flat
        at = row * self.capacity + cell
        for name, column in seen.items():
            flat[name][at] = column
        flat["action"][at] = action
        flat["behavior_logp"][at] = logp

    def legal_after(self, row: Array, cell: Array, masks: Array) -> Array:
        """Replace each of the final `masks`, bool [N, A], that allows nothing by the mask of the last decision.

        An environment that gives no final mask must not be bootstrapped from actions that are never legal.
        """
        missing = ~masks.any(axis=1)
        masks[missing] = self.data["action_mask"][row[missing], cell[missing]]
        return masks

    def carry(self, row: Array, cell: Array) -> None:
        """Move the open cells to the front."""
        for column in self.data.values():
            column[row, 0] = column[row, cell]

    def reopen(self, row: Array, columns: Mapping[str, Array]) -> None:
        """Restore open rows at the front."""
        for name, column in self.data.items():
            column[row, 0] = columns[name]

    def cut(self, segments: Segments) -> dict[str, Array]:
        """Return the rows of `segments`, concatenated."""
        at = ranges(segments.row * self.capacity + segments.start, segments.stop - segments.start)
        return {name: column.take(at, axis=0) for name, column in self._flat.items()}


def ranges(first: Array, length: Array) -> Array:
    """Return `length[i]` consecutive integers from `first[i]`, for each i, concatenated.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    stops = np.cumsum(length)
    numbers = np.arange(stops[-1] if len(stops) else 0)
    consecutive: Array = numbers + np.repeat(first - stops + length, length)
    return consecutive
