"""Row numbers of sharded replays, which tell the shard."""

from __future__ import annotations

SHARD_SPAN = 2**52
"""Row numbers per shard, more than any run uses."""


def first_row_of(shard: int) -> int:
    """Return a shard's first row number."""
    return shard * SHARD_SPAN


def shard_of(row_id: int) -> int:
    """Return the shard of a row number."""
    return row_id // SHARD_SPAN
