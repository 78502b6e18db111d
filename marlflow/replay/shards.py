"""Row numbering of a replay in several shards: a row's number tells its shard."""

from __future__ import annotations

SHARD_SPAN = 2**52
"""Row numbers per shard: more than any run uses."""


def first_row_of(shard: int) -> int:
    """Return the number of a shard's first row."""
    return shard * SHARD_SPAN


def shard_of(row_id: int) -> int:
    """Return the shard that a row number belongs to."""
    return row_id // SHARD_SPAN
