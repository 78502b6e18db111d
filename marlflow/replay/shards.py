"""Several replays for one policy: rows are numbered so that a number says which shard holds its row."""

from __future__ import annotations

SHARD_SPAN = 2**52
"""How many row numbers a shard has for itself: more than its rows, and those of all its successors, ever need."""


def first_row_of(shard: int) -> int:
    """The number of the first row that a shard is given."""
    return shard * SHARD_SPAN


def shard_of(row_id: int) -> int:
    """The shard that has, or had, the row of this number."""
    return row_id // SHARD_SPAN
