"""A ring buffer of columns: entry i is at slot i % size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marlflow.base.arrays import Array


class Ring:
    """Preallocated columns, [size, ...] each; the owner tracks valid entries."""

    __slots__ = ("columns", "size")

    def __init__(self, size: int, like: Mapping[str, Array]) -> None:
        self.size = size
        self.columns = {name: np.zeros((size, *column.shape[1:]), column.dtype) for name, column in like.items()}

    def write(self, first: int, columns: Mapping[str, Array]) -> None:
        """Store at most `size` entries of every column, from number `first` on."""
        for name, ring in self.columns.items():
            column = columns[name]
            for slots, offset in pieces(first, first + len(column), self.size):
                ring[slots] = column[offset : offset + slots.stop - slots.start]

    def span(self, name: str, first: int, stop: int) -> Array:
        """Return a copy of entries [first, stop) of a column."""
        # An empty slice first, since concatenate needs at least one array even if the range is empty.
        ring = self.columns[name]
        return np.concatenate([ring[:0], *(ring[slots] for slots, _ in pieces(first, stop, self.size))])

    def resized(self, size: int, first: int, stop: int) -> Ring:
        """Return a ring of another size with entries [first, stop)."""
        ring = Ring(size, self.columns)
        ring.write(first, {name: self.span(name, first, stop) for name in self.columns})
        return ring


def pieces(first: int, stop: int, size: int) -> list[tuple[slice, int]]:
    """Return the slots of entries [first, stop), as slices with offsets from `first`.

    >>> pieces(8, 12, 10)
    [(slice(8, 10, None), 0), (slice(0, 2, None), 2)]
    """
    if first == stop:
        return []
    start, count = first % size, stop - first
    if start + count <= size:
        return [(slice(start, start + count), 0)]
    return [(slice(start, size), 0), (slice(0, start + count - size), size - start)]
