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
        self._memory = np.zeros((lanes, *shape), np.float32)
        # The weights version that computed the memory; -1 for zeros.
        self._version = np.full(lanes, -1)

    @staticmethod
    def columns(shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """Return shape and dtype of `update`'s columns."""
        return {"memory": (shape, np.dtype(np.float32)), "memory_version": ((), np.dtype(np.int64))}

    def begin(self, lanes: slice | Array) -> None:
        """Reset the memory of `lanes`, at the start of an episode or for new parameters."""
        self._memory[lanes] = 0.0
        self._version[lanes] = -1

    def recall(self, lanes: Array) -> Array:
        """Return the memory of `lanes`, [N, *shape]."""
        return self._memory[lanes]

    def update(self, lanes: Array, after: Array, version: int) -> dict[str, Array]:
        """Set the memory of `lanes` to `after`, computed by `version`; return the one before.

        `memory_version` is the version that computed it; for zeros, the acting one.
        """
        computed_by = self._version[lanes]
        # Zeros were computed by no version: rows get the acting one.
        before = {"memory": self._memory[lanes], "memory_version": np.where(computed_by < 0, version, computed_by)}
        self._memory[lanes] = after
        self._version[lanes] = version
        return before

    def state(self, lanes: Array) -> dict[str, Array]:
        """Return the saved columns of `lanes`, [N, ...] each."""
        return {"now": self._memory[lanes], "made_by": self._version[lanes]}

    def load_state(self, lanes: Array, columns: Mapping[str, Array]) -> None:
        """Restore what `state` returned, for the lanes that have it now."""
        self._memory[lanes], self._version[lanes] = columns["now"], columns["made_by"]
