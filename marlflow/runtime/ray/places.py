"""Actors as places: neighboring stages run in one call, and rows stay in the object store."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import ray

from marlflow.base.errors import ActorLost
from marlflow.batches.items import Inserted, Packed
from marlflow.flow import OperatorRaised, Outcome, StageCall, StageTimes
from marlflow.runtime.ray.handles import LearnerHandle, ReplayHandle, RestartableHost
from marlflow.runtime.ray.host import ChainResult, RemoteError, as_exception, check_sendable, packed_call
from marlflow.runtime.stage_chain import Rows


class RayPlace:
    """A hosting actor as a place; if the actor is lost, its items are lost and it is restarted."""

    def __init__(self, host: RestartableHost) -> None:
        self.host, self.name = host, host.name
        self._unconfirmed_chains: dict[tuple[int, int], Any] = {}
        self._methods: dict[tuple[int, int], Any] = {}
        self._calls_in_flight: dict[int, Sequence[Any]] = {}
        self._calls = 0

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name} stays on the driver")

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Awaitable[Outcome]]:
        check_sendable(calls, self.name)
        chain = len(self.host.chains)
        self.host.chains.append(calls)
        key = (self.host.generation, chain)
        self._unconfirmed_chains[key] = self.host.actor.prepare.remote(chain, list(calls))
        run = _Chain(chain, calls)

        async def call(items: Sequence[Any]) -> Outcome:
            before = self.host.generation
            generation = await self.host.wait_until_ready()
            if run.samples_replay and generation != before:
                # The turns were granted for rows of the lost replay; the restarted one may have too few.
                return run.lost_outcome(items)
            self._calls += 1
            number = self._calls
            self._calls_in_flight[number] = items
            try:
                return await self._run(run, items)
            except _ActorDied as death:
                # The calls in flight are all lost, but only the first to notice restarts the actor.
                lost = [item for items in self._calls_in_flight.values() for item in items]
                rows = sum(item.rows for item in lost if getattr(item, "payloads", ()))
                await self.host.restart(generation, death.reason, len(lost), rows)
                return run.lost_outcome(items)
            # The rows were lost with the machine that stored them.
            except ray.exceptions.ObjectLostError:
                return run.lost_outcome(items)
            finally:
                del self._calls_in_flight[number]

        return call

    async def _run(self, run: _Chain, items: Sequence[Any]) -> Outcome:
        policies = 0 if run.publisher is None else len(run.publisher.policies)
        returns = 1 + (len(items) if run.packs else 0) + policies
        receipt, *refs = await self._call_chain(run.number, items, returns)
        if receipt.version is not None and run.publisher is not None:
            run.publisher.set_published(receipt.version, refs[-policies:])
        outputs = receipt.outputs
        if run.stores is not None:
            run.stores.record_inserts(outputs)
        if run.packs:
            outputs = [Packed(rows, (ref,)) for rows, ref in zip(outputs, refs, strict=False)]
        return Outcome(outputs, receipt.times)

    async def _call_chain(self, chain: int, items: Sequence[Any], returns: int) -> tuple[ChainResult, *tuple[Any, ...]]:
        payloads = [getattr(item, "payloads", ()) for item in items]
        light = [item.keys if parts else item for item, parts in zip(items, payloads, strict=True)]
        counts = [len(parts) for parts in payloads]
        flat = [payload for parts in payloads for payload in parts]
        # Rows are top-level arguments, which Ray fetches where the call runs; nested ones it would not.
        result = self._method(returns).remote(packed_call(chain, light, counts, returns), *flat)
        refs = result if returns > 1 else [result]
        try:
            # The first call raises errors of sending the chain, for example of stages that do not pickle.
            sent = self._unconfirmed_chains.pop((self.host.generation, chain), None)
            if sent is not None:
                await sent
            receipt = await self.host.answer(refs[0])
        except ray.exceptions.RayActorError as error:
            raise _ActorDied(error) from error
        if isinstance(receipt, RemoteError):
            # A follower of the learner was lost: the whole group is restarted.
            if isinstance(receipt.error, ActorLost):
                raise _ActorDied(receipt.error)
            raise OperatorRaised(receipt.position, receipt.text) from as_exception(receipt)
        return receipt, *refs[1:]

    def _method(self, returns: int) -> Any:
        key = (self.host.generation, returns)
        if key not in self._methods:
            self._methods[key] = self.host.actor.run.options(num_returns=returns)
        return self._methods[key]


class _ActorDied(Exception):
    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Chain:
    def __init__(self, number: int, calls: Sequence[StageCall]) -> None:
        self.number, self._stages = number, len(calls)
        first, last = calls[0], calls[-1]
        self.packs = isinstance(last.traits.emits, type) and issubclass(last.traits.emits, Rows)
        self.publisher: LearnerHandle | None = next((call.at for call in calls if call.traits.publishes), None)
        stores = isinstance(last.at, ReplayHandle) and last.traits.emits is Inserted
        self.stores: ReplayHandle | None = last.at if stores else None
        # A source at a replay, whose turns the pace granted for rows stored there.
        self.samples_replay = first.is_source and isinstance(first.at, ReplayHandle)

    def lost_outcome(self, items: Sequence[Any]) -> Outcome:
        """Return the outcome of a call whose items were lost."""
        now_s = time.time()
        return Outcome([], [StageTimes(now_s, now_s, 0)] * self._stages, lost=len(items))
