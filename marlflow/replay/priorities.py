"""A sum tree over priorities (Schaul et al., 2016, "Prioritized Experience Replay", arXiv:1511.05952, appendix B.2.1).

Each node has 32 children instead of two: a million rows are four levels, so changing or finding a batch of rows is a
handful of vector operations. A node is always the sum of its children as they are, never of differences, so nothing
drifts and the tree is a pure function of its leaves.
"""

from __future__ import annotations

import numpy as np

from marlflow.base.batch import Array

_WIDTH = 32


class SumTree:
    """Weights >= 0 of the slots 0 to size - 1, all 0 at first, from which slots are found by cumulated weight."""

    __slots__ = ("_families",)

    def __init__(self, size: int) -> None:
        # From the leaves up, [families, _WIDTH]: a family is the children of one node of the level above.
        self._families: list[Array] = []
        while size > 1 or not self._families:
            size = -(-size // _WIDTH)
            self._families.append(np.zeros((size, _WIDTH)))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._families[-1].sum())

    def get(self, slots: Array) -> Array:
        """The weights of `slots`, float64 [B]."""
        leaves: Array = self._families[0].reshape(-1)
        return leaves.take(slots)

    def set(self, slots: Array, weights: Array) -> None:
        """Give each of `slots`, [B], its weight; of a slot named twice the last counts."""
        nodes = slots
        self._families[0].reshape(-1)[slots] = weights
        for below, level in zip(self._families[:-1], self._families[1:], strict=True):
            nodes = nodes // _WIDTH
            level.reshape(-1)[nodes] = below.take(nodes, axis=0).sum(axis=1)

    def set_range(self, slots: slice, weights: Array | float) -> None:
        """Give neighbouring slots their weights, or all the same."""
        first, stop = slots.start, slots.stop
        self._families[0].reshape(-1)[slots] = weights
        for below, level in zip(self._families[:-1], self._families[1:], strict=True):
            first, stop = first // _WIDTH, -(-stop // _WIDTH)
            level.reshape(-1)[first:stop] = below[first:stop].sum(axis=1)

    def find(self, mass: Array) -> Array:
        """For each mass, [B] in [0, total), the slot at which the cumulated weight first exceeds it.

        Never a slot of weight 0, whatever the rounding, as long as the total is positive.
        """
        row = np.arange(len(mass))
        node = np.zeros(len(mass), np.int64)
        for level in reversed(self._families):
            weights = level.take(node, axis=0)
            cumulated = weights.cumsum(axis=1)
            mass = np.minimum(mass, np.nextafter(cumulated[:, -1], 0.0))
            child = (cumulated > mass[:, None]).argmax(axis=1)
            mass = np.maximum(mass - (cumulated[row, child] - weights[row, child]), 0.0)
            node = node * _WIDTH + child
        return node
