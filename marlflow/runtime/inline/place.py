"""Places that run stages in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marlflow.batches.items import Packed
from marlflow.flow import Outcome, StageCall
from marlflow.runtime.stage_chain import (
    ON_WORKERS,
    AllShards,
    Rows,
    merge_payloads,
    over_all,
    payloads_by_worker,
    run_chain,
    shard,
)


@dataclass(frozen=True, slots=True)
class InlinePlace:
    """The place of an inline learner or replay."""

    # The name of the Ray actor, so that a plan prints the same for every runtime.
    name: str

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Outcome]:
        def call(items: Sequence[Any]) -> Outcome:
            outputs, times = run_chain(calls, [_unpacked(item) for item in items])
            return Outcome([_packed(output) for output in outputs], times)

        return call


@dataclass(frozen=True, slots=True)
class InlineReplicasPlace:
    """The place of a learner with replicas: inline, one learner handles all workers' shards."""

    workers: int
    name: str = ON_WORKERS

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Outcome]:
        chain = [over_all(call) for call in calls]

        def call(items: Sequence[Any]) -> Outcome:
            return Outcome(*run_chain(chain, [self._unpacked(item) for item in items]))

        return call

    def _unpacked(self, item: Any) -> AllShards:
        return AllShards([shard(payloads) for payloads in payloads_by_worker(item, self.workers)])


def _unpacked(item: Any) -> Any:
    payloads = getattr(item, "payloads", ())
    return merge_payloads(payloads, item.keys) if payloads else item


def _packed(output: Any) -> Any:
    return Packed(output.rows, (output,)) if isinstance(output, Rows) else output
