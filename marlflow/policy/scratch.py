"""Memory for intermediate results that is used again.

A fresh array of half a megabyte costs page faults and misses of the cache, which take longer than what is computed in
it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST = 16_384
"""Numbers below which an array is cheaper made anew: the allocator keeps such arrays, and they fit the cache."""

# By capacity in rows, and columns. A list's pop and append are atomic, so threads need no lock.
_free: dict[tuple[int, int], list[Tensor]] = {}


def take(rows: int, columns: int) -> Tensor | None:
    """Return an array of float32 [rows, columns] on the CPU with any content, which nobody else has.

    None if it would be so small that a new one is cheaper; as `out` of torch's functions None makes a new one.
    """
    if rows * columns < _SMALLEST:
        return None
    capacity = _capacity(rows)
    try:
        array = _free[capacity, columns].pop()
    except (KeyError, IndexError):
        # An inference tensor could not be written to outside of inference mode.
        with torch.inference_mode(False):
            array = torch.empty(capacity, columns)
    return array if len(array) == rows else array.as_strided((rows, columns), (columns, 1))


def give_back(array: Tensor) -> None:
    """Let others have an array of `take`; the caller may not use it again."""
    rows, columns = array.shape
    if rows * columns >= _SMALLEST:
        _free.setdefault((_capacity(rows), columns), []).append(array)


def _capacity(rows: int) -> int:
    # Few capacities, so that minibatches of many sizes share arrays.
    return 1 << (rows - 1).bit_length()
