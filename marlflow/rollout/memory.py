"""What a recurrent policy remembers: one entry for each agent and episode, zero at the episode's start.

An entry lives through fragments and publishes. A row is given the memory before its decision.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marlflow.base.batch import Array


class Memory:
    """The memory of one policy, float32 [lanes, *shape], by lane."""

    def __init__(self, lanes: int, shape: tuple[int, ...]) -> None:
        self._now = np.zeros((lanes, *shape), np.float32)
        self._made_by = np.full(lanes, -1)  # the version that computed it; none computed a zero

    @staticmethod
    def columns(shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """Shape and dtype of what a row has of a memory: what `decided` returns."""
        return {"memory": (shape, np.dtype(np.float32)), "memory_version": ((), np.dtype(np.int64))}

    def begin(self, lanes: slice) -> None:
        """An episode begins in `lanes`."""
        self._now[lanes] = 0.0
        self._made_by[lanes] = -1

    def recall(self, lanes: Array) -> Array:
        """What `lanes` remember, [N, *shape]."""
        return self._now[lanes]

    def decided(self, lanes: Array, after: Array, version: int) -> dict[str, Array]:
        """`lanes` decided with `version` and now remember `after`; returns what they remembered before.

        `memory_version` is the one that computed it; a zero counts as computed by the one that looks at it.
        """
        made_by = self._made_by[lanes]
        before = {"memory": self._now[lanes], "memory_version": np.where(made_by < 0, version, made_by)}
        self._now[lanes] = after
        self._made_by[lanes] = version
        return before

    def state(self, lanes: Array) -> dict[str, Array]:
        """All that is kept of `lanes`, [N, ...] each."""
        return {"now": self._now[lanes], "made_by": self._made_by[lanes]}

    def load_state(self, lanes: Array, columns: Mapping[str, Array]) -> None:
        """What `state` gave, for the lanes that are now theirs."""
        self._now[lanes], self._made_by[lanes] = columns["now"], columns["made_by"]
