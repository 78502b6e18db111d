"""Runs consecutive stages at their place, with payloads merged, split over rollout workers, or packed as bytes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias

from marlflow.base.errors import CheckpointUnusable, ends_this_process
from marlflow.base.serialization import MALFORMED, Tree, from_bytes, to_bytes
from marlflow.batches.batch import Batch, TrainBatch
from marlflow.batches.items import Gradients, Packed, as_it_is
from marlflow.batches.joint import JointBatches
from marlflow.flow import Outcome, StageCall, StageTimes
from marlflow.flow.meters import rows_of
from marlflow.flow.protocols import EndOfFlow, OperatorRaised, RunsAhead
from marlflow.learner.distributed.replicas import no_rows, sharded, shards_of
from marlflow.learner.update_job import mean_gradients

Rows: TypeAlias = TrainBatch | Gradients
"""Outputs that leave a place packed, so that the driver does not open them."""
ON_WORKERS = "rollout workers"
"""The place of a learner with a replica on each, in plans."""


def merge_payloads(payloads: Sequence[Any], keys: Sequence[str] = ()) -> Any:
    """Merge payloads (concatenate batches, average gradients), separately for each of `keys`."""
    if keys:
        keyed = list(zip(keys, payloads, strict=True))
        return JointBatches(
            (key, merge_payloads([payload for owner, payload in keyed if owner == key])) for key in dict.fromkeys(keys)
        )
    if len(payloads) == 1:
        return payloads[0]
    return mean_gradients(payloads) if isinstance(payloads[0], Gradients) else Batch.concat(payloads)


def run_chain(calls: Sequence[Callable[[Any], Any]], items: Sequence[Any]) -> tuple[list[Any], list[StageTimes]]:
    """Apply all calls to each item; the item None is a call of a source.

    The first of them may run ahead (see RunsAhead). Returns the outputs (fewer if the source ends) and the times of
    each call. Raises OperatorRaised if one fails.
    """
    chain = _ChainRun(calls, items)
    with suppress(EndOfFlow):
        chain.run()
    return chain.outputs, chain.times()


def _several(call: StageCall, after: Sequence[StageCall], items: Sequence[Any]) -> Sequence[Any]:
    outputs: Sequence[Any] = call.operator.several(items, call.at, after)
    return outputs


@dataclass(frozen=True, slots=True)
class InlinePlace:
    """A place in this process: the driver, or an inline learner or replay, named as the Ray actor in plans.

    `fetch` dereferences payloads, and `put` turns results into payloads.
    """

    name: str = "driver"
    fetch: Callable[[Any], Any] = as_it_is
    put: Callable[[Any], Any] = as_it_is

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Outcome]:
        def call(items: Sequence[Any]) -> Outcome:
            outputs, times = run_chain(calls, [self._unpacked(item) for item in items])
            return Outcome([self._packed(output) for output in outputs], times)

        return call

    def _unpacked(self, item: Any) -> Any:
        payloads = [self.fetch(payload) for payload in getattr(item, "payloads", ())]
        return merge_payloads(payloads, item.keys) if payloads else item

    def _packed(self, output: Any) -> Any:
        return Packed(output.rows, (self.put(output),)) if isinstance(output, Rows) else output


class _ChainRun:
    def __init__(self, calls: Sequence[Callable[[Any], Any]], items: Sequence[Any]) -> None:
        self._calls, self._items = calls, items
        # An operator that runs ahead needs the calls of all stages after it.
        self._stages = [call for call in calls if isinstance(call, StageCall)]
        ahead = takewhile(lambda call: isinstance(call.operator, RunsAhead), self._stages)
        self._leading = list(ahead) if len(self._stages) == len(calls) else []
        self._began_s = time.time()
        self._spent, self._rows = [0.0] * len(calls), [0] * len(calls)
        self.outputs: list[Any] = []

    def run(self) -> None:
        """Run all items; raises EndOfFlow if the source ended."""
        done = 0
        while done < len(self._items):
            values, first = self._run_ahead(self._items[done:]) if self._leading else (self._items[done : done + 1], 0)
            for value in values:
                output = value
                for position in range(first, len(self._calls)):
                    try:
                        output = self._call(position, self._calls[position], output)
                    except OperatorRaised as error:
                        if output is not None or position == first:
                            raise
                        # None may be an item; one that the next stage breaks on was hardly meant.
                        reason = f"it returned None, which the stage after it cannot take ({error})"
                        raise OperatorRaised(position - 1, reason) from None
                    self._rows[position] += rows_of(output)
                self.outputs.append(output)
            done += len(values)

    def _run_ahead(self, items: Sequence[Any]) -> tuple[Sequence[Any], int]:
        """Let the leading calls take several items; return their outputs, and the position of the next call."""
        count, parts = len(items), []
        for position, call in enumerate(self._leading):
            after = self._stages[position + 1 :]
            if (most := call.operator.ahead(call.at, after)) < 1:
                break
            count = min(count, most)
            parts.append(partial(_several, call, after))
        if len(parts) < len(self._leading):
            return items[:1], 0
        values: Sequence[Any] = items[:count]
        for position, part in enumerate(parts):
            values = self._call(position, part, values)
            if len(values) != count:
                raise OperatorRaised(position, f"it returned {len(values)} outputs for {count} items")
            self._rows[position] += sum(map(rows_of, values))
        return values, len(parts)

    def _call(self, position: int, call: Callable[[Any], Any], value: Any) -> Any:
        start = time.perf_counter()
        try:
            result = call(value)
        except (EndOfFlow, StopIteration) as end:
            if position == 0 and self._items[0] is None:
                raise EndOfFlow from end
            # Only a source may end its flow.
            raise OperatorRaised(position, "it ended a flow that it does not begin") from end
        except (Exception, SystemExit) as error:
            if ends_this_process(error):
                raise
            raise OperatorRaised(position, f"{type(error).__name__}: {error}") from error
        self._spent[position] += time.perf_counter() - start
        return result

    def times(self) -> list[StageTimes]:
        """Return when each call ran, and its rows."""
        # Calls alternate item by item; report them as if each had handled all items at once, one call after the other.
        start_s = self._began_s
        times: list[StageTimes] = []
        for seconds, count in zip(self._spent, self._rows, strict=True):
            times.append(StageTimes(start_s, start_s + seconds, count))
            start_s += seconds
        return times


def pack_batch(batch: TrainBatch | Gradients) -> bytes:
    """Serialize; raises TypeError for other types."""
    if isinstance(batch, Gradients):
        tree: Tree = {field.name: getattr(batch, field.name) for field in fields(batch)} | {"loss": dict(batch.loss)}
        return to_bytes({"kind": Gradients.__name__, "of": tree})
    if not isinstance(batch, TrainBatch):
        raise TypeError(f"expected a TrainBatch or Gradients to wait on the driver, not {type(batch).__name__}")
    kind = type(batch)
    return to_bytes({"kind": f"{kind.__module__}.{kind.__qualname__}", "of": batch.to_tree()})


def unpack_batch(packed: bytes | memoryview, kind: type[Any] | None = None) -> TrainBatch | Gradients:
    """Deserialize, as a `kind` if `batch_class` returned one; raises CheckpointUnusable for malformed bytes."""
    tree = from_bytes(packed)
    kind = _class_of(tree) if kind is None else kind
    try:
        unpacked: TrainBatch | Gradients = kind(**tree["of"]) if kind is Gradients else kind.from_tree(tree["of"])
        return unpacked
    except MALFORMED as error:
        raise CheckpointUnusable([f"rows or gradients that waited ({kind.__name__}) are not whole: {error}"]) from error


def batch_class(packed: bytes | memoryview) -> type[Any]:
    """Return the class of what was packed; raises CheckpointUnusable if no module that this process imported has it."""
    return _class_of(from_bytes(packed))


def _class_of(tree: Any) -> type[Any]:
    try:
        return Gradients if tree["kind"] == Gradients.__name__ else _batch_class(tree["kind"])
    except MALFORMED as error:
        named = tree.get("kind") if isinstance(tree, dict) else None
        raise CheckpointUnusable([f"rows or gradients that waited ({named!s:.80}) are not whole: {error}"]) from error


def _batch_class(name: str) -> type[TrainBatch]:
    # Only modules that are already imported: a name in a checkpoint must not execute code.
    module, _, class_name = name.rpartition(".")
    # Our classes have unique names, and had other modules before.
    ours = [one for one in sys.modules if one.startswith("marlflow.")] if name.startswith("marlflow.") else []
    for one in (module, *ours):
        batch_class = getattr(sys.modules.get(one), class_name, None)
        if isinstance(batch_class, type) and issubclass(batch_class, TrainBatch):
            return batch_class
    raise LookupError("there is no TrainBatch of this name in the modules of this run")


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
    """Apply `stage` to each shard, but an update, or a stage over all shards, to all of them at once."""

    def call(value: Any) -> Any:
        if not isinstance(value, AllShards):
            return stage(value)
        if stage.traits.updates:
            return stage(sharded(value.batches))
        if stage.traits.over_shards:
            return AllShards(shards_of(stage(sharded(value.batches))))
        return AllShards([stage(batch) for batch in value.batches])

    return call
