"""The memory of a recurrent policy: one entry per agent, zero at the start of an episode.

Memory persists across fragments and weight updates.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marlflow.base.batch import Array


class Memory:
    """One policy's memory by lane, float32 [lanes, *shape]."""

    def __init__(self, lanes: int, shape: tuple[int, ...]) -> None:
        self._now = np.zeros((lanes, *shape), np.float32)
        # The weights version that computed the memory; -1 for zeros.
        self._made_by = np.full(lanes, -1)

    @staticmethod
    def columns(shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """Return shape and dtype of `decided`'s columns."""
        return {"memory": (shape, np.dtype(np.float32)), "memory_version": ((), np.dtype(np.int64))}

    def begin(self, lanes: slice) -> None:
        """Reset the memory of `lanes` at the start of an episode."""
        self._now[lanes] = 0.0
        self._made_by[lanes] = -1

    def recall(self, lanes: Array) -> Array:
        """Return the memory of `lanes`, [N, *shape]."""
        return self._now[lanes]

    def decided(self, lanes: Array, after: Array, version: int) -> dict[str, Array]:
        """Set the memory of `lanes` to `after`, computed by `version`; return the one before.

        `memory_version` is the version that computed it; for zeros, the acting one.
        """
        made_by = self._made_by[lanes]
        # Zeros were computed by no version: rows get the acting one.
        before = {"memory": self._now[lanes], "memory_version": np.where(made_by < 0, version, made_by)}
        self._now[lanes] = after
        self._made_by[lanes] = version
        return before

    def state(self, lanes: Array) -> dict[str, Array]:
        """Return the saved columns of `lanes`, [N, ...] each."""
        return {"now": self._now[lanes], "made_by": self._made_by[lanes]}

    def load_state(self, lanes: Array, columns: Mapping[str, Array]) -> None:
        """Restore what `state` returned, for the lanes that have it now."""
        self._now[lanes], self._made_by[lanes] = columns["now"], columns["made_by"]
