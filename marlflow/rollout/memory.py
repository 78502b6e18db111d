"""What a recurrent policy remembers: one entry for each agent and episode, zero at the episode's start.

An entry lives through fragments and publishes. A segment is given the memory before its first row, and that with which
its bootstrap observation is to be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from marlflow.base.batch import Array


class SegmentMemory(NamedTuple):
    """Of S segments: `first` [S, ...] before the first row, made by version `made_by` [S]; `last` for the bootstrap."""

    first: Array
    made_by: Array
    last: Array


class Memory:
    """The memory of one policy, float32 [lanes, *shape], by lane."""

    def __init__(self, lanes: int, shape: tuple[int, ...]) -> None:
        self._now = np.zeros((lanes, *shape), np.float32)
        self._made_by = np.full(lanes, -1)  # the version that computed it; none computed a zero
        # Before the last decision of each lane: that is what its row, if it is still open, is carried with.
        self._before, self._before_made_by = self._now.copy(), self._made_by.copy()
        # Before the first row of each lane's segment.
        self._first, self._first_made_by = self._now.copy(), self._made_by.copy()

    def begin(self, lanes: slice) -> None:
        """An episode begins in `lanes`."""
        for column in (self._now, self._before, self._first):
            column[lanes] = 0.0
        for made_by in (self._made_by, self._before_made_by, self._first_made_by):
            made_by[lanes] = -1

    def recall(self, lanes: Array) -> Array:
        """What `lanes` remember, [N, *shape]."""
        return self._now[lanes]

    def decided(self, lanes: Array, after: Array, version: int, begins: Array) -> None:
        """`lanes` decided with `version` and now remember `after`; `begins` (bool [N]) says whose segment begins."""
        before, made_by = self._now[lanes], self._made_by[lanes]
        made_by = np.where(made_by < 0, version, made_by)
        self._before[lanes], self._before_made_by[lanes] = before, made_by
        first = lanes[begins]
        self._first[first], self._first_made_by[first] = before[begins], made_by[begins]
        self._now[lanes] = after
        self._made_by[lanes] = version

    def of_segments(self, lanes: Array, open_rows: Array) -> SegmentMemory:
        """Of the segments of `lanes` [S] that end now; `open_rows` (bool [S]): the bootstrap is a row still open."""
        last = self._now[lanes]
        last[open_rows] = self._before[lanes[open_rows]]
        return SegmentMemory(self._first[lanes], self._first_made_by[lanes], last)

    def state(self, lanes: Array) -> dict[str, Array]:
        """All that is kept of `lanes`, [N, ...] each."""
        return {name: column[lanes] for name, column in self._columns().items()}

    def load_state(self, lanes: Array, columns: Mapping[str, Array]) -> None:
        """What `state` gave, for the lanes that are now theirs."""
        for name, column in self._columns().items():
            column[lanes] = columns[name]

    def _columns(self) -> dict[str, Array]:
        return {
            "now": self._now,
            "made_by": self._made_by,
            "before": self._before,
            "before_made_by": self._before_made_by,
            "first": self._first,
            "first_made_by": self._first_made_by,
        }

    def carried(self, lanes: Array) -> None:
        """The open rows of `lanes` begin the next segments."""
        self._first[lanes], self._first_made_by[lanes] = self._before[lanes], self._before_made_by[lanes]
