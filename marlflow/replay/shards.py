"""Names of replays, and row numbers of sharded ones, which tell the shard."""

from __future__ import annotations

SHARD_SPAN = 2**52
"""Row numbers per shard, more than any run uses."""


def first_row_of(shard: int) -> int:
    """Return a shard's first row number."""
    return shard * SHARD_SPAN


def shard_of(row_id: int) -> int:
    """Return the shard of a row number."""
    return row_id // SHARD_SPAN


def replay_names(learner: str, shards: int) -> tuple[str, ...]:
    """Return the names of a learner's replays: the learner's own, or with several shards `prey@0`, `prey@1`, ..."""
    return (learner,) * shards if shards < 2 else tuple(f"{learner}@{shard}" for shard in range(shards))


def learner_of_replay(name: str) -> str:
    """Return the learner of a replay: `prey` for `prey@0`."""
    return name.partition("@")[0]
