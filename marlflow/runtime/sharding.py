"""Items split over the rollout workers, for learners with a replica on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marlflow.batches.batch import Batch
from marlflow.flow import StageCall
from marlflow.learner.distributed.replicas import no_rows, sharded
from marlflow.runtime.stage_chain import merge_payloads

ON_WORKERS = "rollout workers"
"""The place of a learner with a replica on each, in plans."""


def payloads_by_worker(item: Any, workers: int) -> list[tuple[Any, ...]]:
    """Return the payloads of each worker; raises TypeError for items not keyed by worker."""
    payloads, keys = getattr(item, "payloads", ()), getattr(item, "keys", ())
    if len(payloads) != len(keys):
        raise TypeError(f"a learner with a replica on each worker learns from shards, not from {item!r}: gather Shards")
    # After a resume with fewer workers, payloads of the missing ones are dealt to the others.
    owners = [int(key) % workers for key in keys]
    return [tuple(p for p, owner in zip(payloads, owners, strict=True) if owner == n) for n in range(workers)]


def shard(payloads: Sequence[Any]) -> Batch:
    """Merge a worker's payloads, of which there may be none."""
    batch: Batch = merge_payloads(payloads) if payloads else no_rows()
    return batch


@dataclass(frozen=True, slots=True)
class AllShards:
    """All workers' shards, in one process."""

    batches: Sequence[Any]

    @property
    def rows(self) -> int:
        """Number of agent steps."""
        return sum(batch.rows for batch in self.batches)


def over_all(stage: StageCall) -> Callable[[Any], Any]:
    """Apply `stage` to each shard, but an update to all of them at once."""

    def call(value: Any) -> Any:
        if not isinstance(value, AllShards):
            return stage(value)
        if stage.traits.updates:
            return stage(sharded(value.batches))
        return AllShards([stage(batch) for batch in value.batches])

    return call
