"""An item in shards: what each rollout worker has of it, and one process that stands for all workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marlflow.base.batch import Batch
from marlflow.flow import StageCall
from marlflow.learner.distributed.shards import no_rows, sharded
from marlflow.runtime.stage_chain import merge_payloads

ON_WORKERS = "rollout workers"
"""What a plan calls the place of a learner that has a replica on each of them."""


def payloads_by_worker(item: Any, workers: int) -> list[tuple[Any, ...]]:
    """The payloads of an item that each of `workers` has; those of workers that are no more, after a resume, others.

    Raises TypeError for an item that does not say whose its payloads are.
    """
    payloads, keys = getattr(item, "payloads", ()), getattr(item, "keys", ())
    if len(payloads) != len(keys):
        raise TypeError(f"a learner with a replica on each worker learns from shards, not from {item!r}: gather Shards")
    whose = [int(key) % workers for key in keys]
    return [tuple(p for p, owner in zip(payloads, whose, strict=True) if owner == n) for n in range(workers)]


def shard(payloads: Sequence[Any]) -> Batch:
    """What a worker has of an item, merge_payloads; a batch without rows if that is nothing."""
    batch: Batch = merge_payloads(payloads) if payloads else no_rows()
    return batch


@dataclass(frozen=True, slots=True)
class AllShards:
    """What all workers have of an item, in one process."""

    batches: Sequence[Any]

    @property
    def rows(self) -> int:
        """Agent steps."""
        return sum(batch.rows for batch in self.batches)


def over_all(stage: StageCall) -> Callable[[Any], Any]:
    """What all workers together do with all shards: each its own, but learn from all of them at once."""

    def call(value: Any) -> Any:
        if not isinstance(value, AllShards):
            return stage(value)
        if stage.traits.updates:
            return stage(sharded(value.batches))
        return AllShards([stage(batch) for batch in value.batches])

    return call
