"""Actors as places: neighboring stages run in one call, and rows stay in the object store."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import ray

from marlflow.base.errors import ActorLost
from marlflow.base.items import Inserted, Packed
from marlflow.flow import OperatorRaised, Outcome, StageCall, StageTimes
from marlflow.runtime.ray.handles import Hosted, LearnerHandle, ReplayHandle
from marlflow.runtime.ray.host import Raised, Ran, as_exception
from marlflow.runtime.stage_chain import Rows


class RayPlace:
    """A hosting actor as a place. If the actor is lost, items there are lost, and the restarted one continues."""

    def __init__(self, hosted: Hosted) -> None:
        self.hosted, self.name = hosted, hosted.name
        self._unconfirmed: dict[tuple[int, int], Any] = {}
        self._methods: dict[tuple[int, int], Any] = {}
        self._under_way: dict[int, Sequence[Any]] = {}
        self._calls = 0

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name} stays on the driver")

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Awaitable[Outcome]]:
        chain = len(self.hosted.chains)
        self.hosted.chains.append(calls)
        key = (self.hosted.incarnation, chain)
        self._unconfirmed[key] = self.hosted.actor.prepare.remote(chain, list(calls))
        run = _Chain(chain, calls)

        async def call(items: Sequence[Any]) -> Outcome:
            before = self.hosted.incarnation
            incarnation = await self.hosted.present()
            if run.draws and incarnation != before:
                return run.lost(items)  # the turns were granted for rows that are gone
            self._calls += 1
            number = self._calls
            self._under_way[number] = items
            try:
                return await self._run(run, items)
            except _Died as died:
                lost = [item for items in self._under_way.values() for item in items]
                await self.hosted.revive(incarnation, died.reason, len(lost), sum(map(_experience, lost)))
                return run.lost(items)
            except ray.exceptions.ObjectLostError:  # with the machine that had the rows
                return run.lost(items)
            finally:
                del self._under_way[number]

        return call

    async def _run(self, run: _Chain, items: Sequence[Any]) -> Outcome:
        policies = 0 if run.publisher is None else len(run.publisher.policies)
        returns = 1 + (len(items) if run.packs else 0) + policies
        receipt, *refs = await self._ran(run.number, items, returns)
        if receipt.version is not None and run.publisher is not None:
            run.publisher.hand_out(receipt.version, refs[-policies:])
        outputs = receipt.outputs
        if run.stores is not None:
            run.stores.now_holds(outputs)
        if run.packs:
            outputs = [Packed(rows, (ref,)) for rows, ref in zip(outputs, refs, strict=False)]
        return Outcome(outputs, receipt.times)

    async def _ran(self, chain: int, items: Sequence[Any], returns: int) -> tuple[Ran, *tuple[Any, ...]]:
        payloads = [getattr(item, "payloads", ()) for item in items]
        light = [item.keys if found else item for item, found in zip(items, payloads, strict=True)]
        counts = [len(found) for found in payloads]
        flat = [payload for found in payloads for payload in found]
        made = self._method(returns).remote(chain, light, counts, returns, *flat)
        refs = made if returns > 1 else [made]
        confirmed = (self.hosted.incarnation, chain)
        try:
            known = self._unconfirmed.pop(confirmed, None)
            if known is not None:  # whatever kept the calls from arriving is raised here
                await known
            receipt = await refs[0]
        except ray.exceptions.RayActorError as error:
            raise _Died(error) from error
        if isinstance(receipt, Raised):
            if isinstance(receipt.error, ActorLost):  # one of those who follow the learner here
                raise _Died(receipt.error)
            raise OperatorRaised(receipt.position, receipt.text) from as_exception(receipt)
        return receipt, *refs[1:]

    def _method(self, returns: int) -> Any:
        key = (self.hosted.incarnation, returns)
        if key not in self._methods:
            self._methods[key] = self.hosted.actor.run.options(num_returns=returns)
        return self._methods[key]


class _Died(Exception):
    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Chain:
    """What the driver needs to know of a fused chain of stages."""

    def __init__(self, number: int, calls: Sequence[StageCall]) -> None:
        self.number, self._stages = number, len(calls)
        first, last = calls[0], calls[-1]
        self.packs = _is_packed(last.traits.emits)
        self.publisher: LearnerHandle | None = next((call.at for call in calls if call.traits.publishes), None)
        stores = isinstance(last.at, ReplayHandle) and last.traits.emits is Inserted
        self.stores: ReplayHandle | None = last.at if stores else None
        self.draws = first.is_source and isinstance(first.at, ReplayHandle)

    def lost(self, items: Sequence[Any]) -> Outcome:
        """Return the outcome of a call whose items were lost."""
        now_s = time.time()
        return Outcome([], [StageTimes(now_s, now_s, 0)] * self._stages, lost=len(items))


def _experience(item: Any) -> int:
    return item.rows if getattr(item, "payloads", ()) else 0


def _is_packed(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Rows)
