"""A sum tree of priorities (Schaul et al., 2016, "Prioritized Experience Replay", arXiv:1511.05952, appendix B.2.1).

With 32 children per node, a million rows need four levels. Nodes are recomputed from their children, so rounding errors
do not accumulate.
"""

from __future__ import annotations

import numpy as np

from marlflow.base.arrays import Array

_WIDTH = 32


class SumTree:
    """Weights >= 0 of slots 0 to size - 1, initially 0, searchable by cumulative weight."""

    __slots__ = ("_families",)

    def __init__(self, size: int) -> None:
        # Leaves first, [families, _WIDTH]: a family is the children of one node in the next level.
        self._families: list[Array] = []
        while size > 1 or not self._families:
            size = -(-size // _WIDTH)
            self._families.append(np.zeros((size, _WIDTH)))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._families[-1].sum())

    def get(self, slots: Array) -> Array:
        """Return the weights of `slots`, float64 [B]."""
        leaves: Array = self._families[0].reshape(-1)
        return leaves.take(slots)

    def set(self, slots: Array, weights: Array) -> None:
        """Set the weights of `slots`, [B]; the last of duplicates counts."""
        nodes = slots
        self._families[0].reshape(-1)[slots] = weights
        for below, level in zip(self._families[:-1], self._families[1:], strict=True):
            nodes = nodes // _WIDTH
            level.reshape(-1)[nodes] = below.take(nodes, axis=0).sum(axis=1)

    def set_range(self, slots: slice, weights: Array | float) -> None:
        """Set the weights of consecutive slots."""
        first, stop = slots.start, slots.stop
        self._families[0].reshape(-1)[slots] = weights
        for below, level in zip(self._families[:-1], self._families[1:], strict=True):
            first, stop = first // _WIDTH, -(-stop // _WIDTH)
            level.reshape(-1)[first:stop] = below[first:stop].sum(axis=1)

    def find(self, mass: Array) -> Array:
        """Return for each mass, [B] in [0, total), the slot where the cumulative weight first exceeds it.

        Despite rounding, its weight is positive.
        """
        row = np.arange(len(mass))
        node = np.zeros(len(mass), np.int64)
        for level in reversed(self._families):
            weights = level.take(node, axis=0)
            cumulated = weights.cumsum(axis=1)
            # Rounding can push a mass to or past its family's sum; keep it below.
            mass = np.minimum(mass, np.nextafter(cumulated[:, -1], 0.0))
            child = (cumulated > mass[:, None]).argmax(axis=1)
            mass = np.maximum(mass - (cumulated[row, child] - weights[row, child]), 0.0)
            node = node * _WIDTH + child
        return node
