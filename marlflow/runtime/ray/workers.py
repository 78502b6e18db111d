"""Rollout workers as actors: one call per worker and round, rows by reference; the driver opens only receipts.

A lost rollout worker is replaced (restarted); the others continue without it until it is ready.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from marlflow.base.errors import ActorLost
from marlflow.base.fault_kind import FaultKind
from marlflow.base.items import Weights
from marlflow.policy.actor import EvaluationMode
from marlflow.runtime.ray import actors as limits
from marlflow.runtime.ray.actors import Actors, cause
from marlflow.runtime.ray.host import Raised, as_exception
from marlflow.runtime.ray.inference import by_reference
from marlflow.runtime.ray.message_channel import Address
from marlflow.runtime.ray.remote_worker import RemoteWorker
from marlflow.runtime.rounds import make_round
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.env_closing import CLOSE_TIMEOUT_S
from marlflow.sampling.protocol import FrozenPolicy, Matchup, Request, Round
from marlflow.sampling.receipts import Evaluated, Fault, Receipt

_LOST = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
"""What comes instead of an answer: the process is gone, or weights that it was to act with are, with their machine."""


_MOST_IN_VAIN = 10
_CLOSE_TIMEOUT_S = 1.5 * CLOSE_TIMEOUT_S  # more than a process takes that can be interrupted


class RayWorkers:
    """All rollout workers of a run.

    `inference` is the actor that computes their actions; None: each worker does. `renewed` returns the current weights
    of all learners, when the requested ones were lost with their machine. Messages are posted to `address`.
    """

    def __init__(
        self,
        spec: RunSpec,
        actors: Actors,
        on_fault: Callable[[Fault], None],
        renewed: Callable[[], Awaitable[Mapping[str, Weights]]],
        inference: Any = None,
        address: Address | None = None,
    ) -> None:
        self._spec, self._actors, self._inference, self._renewed = spec, actors, inference, renewed
        numbers = range(spec.num_workers)
        self.all = [RemoteWorker(spec, number, actors, on_fault, inference, address) for number in numbers]
        self._begun: dict[asyncio.Task[Round | None], RemoteWorker] = {}

    def start(self) -> list[Any]:
        """Start all workers; return references that resolve when they are ready."""
        return [worker.start() for worker in self.all]

    async def collect(self, request: Request) -> Round:
        learning = self._spec.learning
        for _ in range(_MOST_IN_VAIN):
            present = await self._present()
            asked = self._asked(request)
            calls = [worker.collect(asked) for worker in present]
            answers: list[Receipt | None] = await _answers(present, [refs[0] for refs in calls])
            receipts, payloads = [], []
            for worker, receipt, refs in zip(present, answers, calls, strict=True):
                if receipt is not None:
                    worker.has_come_to(receipt)
                    receipts.append(receipt)
                    payloads.append(dict(zip(learning, refs[1:], strict=True)))
            if receipts:
                return make_round(request.round, receipts, payloads)
            request = replace(request, weights={**request.weights, **await self._renewed()})
        raise ActorLost(f"{_MOST_IN_VAIN} times in a row no rollout worker lived through its round")

    async def collect_next(self, request: Request | None) -> Round:
        for _ in range(_MOST_IN_VAIN):
            if request is not None:
                self._begin(request, await self._present())
            await asyncio.wait(self._begun, return_when=asyncio.FIRST_COMPLETED)
            task = next(task for task in self._begun if task.done())
            del self._begun[task]
            if (made := task.result()) is not None:
                return made
            if request is not None:
                request = replace(request, weights={**request.weights, **await self._renewed()})
            elif not self._begun:
                return Round(-1, [], [])
        raise ActorLost(f"{_MOST_IN_VAIN} times in a row no rollout worker lived through its round")

    def _asked(self, request: Request) -> Request:
        if self._inference is None:
            return request
        return replace(request, weights=by_reference(request.weights), frozen=self.as_sent(request.frozen))

    def as_sent(self, frozen: Mapping[str, FrozenPolicy]) -> Mapping[str, FrozenPolicy]:
        """Return frozen entries as workers get them: by reference if an inference actor serves them."""
        if self._inference is None or not frozen:
            return frozen
        self._inference.seat.remote(Counter(kept.policy for kept in frozen.values()))
        weights = by_reference({name: kept.weights for name, kept in frozen.items()})
        return {name: replace(kept, weights=weights[name]) for name, kept in frozen.items()}

    @property
    def under_way(self) -> int:
        return len(self._begun)

    def _begin(self, request: Request, present: Sequence[RemoteWorker]) -> None:
        asked = self._asked(request)
        busy = set(self._begun.values())
        for worker in present:
            if worker not in busy:
                task = asyncio.ensure_future(self._alone(request.round, worker, worker.collect(asked)))
                self._begun[task] = worker

    async def _alone(self, number: int, worker: RemoteWorker, refs: Sequence[Any]) -> Round | None:
        (receipt,) = await _answers([worker], refs[:1])
        if receipt is None:
            return None
        worker.has_come_to(receipt)
        return make_round(number, [receipt], [dict(zip(self._spec.learning, refs[1:], strict=True))])

    async def evaluate(
        self,
        episodes: range,
        weights: Mapping[str, Weights],
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        left, parts, in_vain = list(range(len(episodes))), [], 0
        while left:
            present = await self._present()
            acting, others = weights if self._inference is None else by_reference(weights), self.as_sent(frozen or {})
            shares = [left[first :: len(present)] for first in range(len(present))]
            asked = [(worker, share) for worker, share in zip(present, shares, strict=True) if share]
            calls = []
            for worker, share in asked:
                dealt = None if matchups is None else [matchups[index] for index in share]
                chosen = [episodes[index] for index in share]
                calls.append(worker.evaluate(chosen, dealt, mode, acting, others))
            answers: list[Evaluated | None] = await _answers([worker for worker, _ in asked], calls)
            parts += [part for part in answers if part is not None]
            played = zip(answers, asked, strict=True)
            left = sorted(index for part, (_, share) in played if part is None for index in share)
            in_vain = in_vain + 1 if all(part is None for part in answers) else 0
            if in_vain == _MOST_IN_VAIN:
                raise ActorLost(f"{in_vain} times in a row no rollout worker lived through its evaluation")
            if in_vain:
                weights = {**weights, **await self._renewed()}
        results = sorted((result for part in parts for result in part.episodes), key=lambda result: result.episode)
        faults = tuple(fault for part in parts for fault in part.faults)
        return Evaluated(tuple(results), faults, any(part.was_cut for part in parts))

    def ask_states(self) -> list[tuple[RemoteWorker, Any]]:
        """Request the state of each worker; return pairs of the worker asked and a reference.

        Another worker answers for one that is being restarted. Blocks if none is ready; raises ActorLost if none comes
        back.
        """
        while not (present := [worker for worker in self.all if worker.is_present()]):
            if not ray.wait([worker.coming for worker in self.all], timeout=limits.REPLACING_TIMEOUT_S)[0]:
                raise self._nobody_is_left()
        stands_in = present[0]
        return [
            (worker, worker.actor.kept.remote())
            if worker in present
            else (stands_in, stands_in.actor.beginning.remote(*worker.begins_at))
            for worker in self.all
        ]

    def close(self) -> tuple[Fault, ...]:
        """Close all environments, waiting a bounded time; return the faults."""
        asked = {worker.actor.close.remote(): worker.what for worker in self.all if worker.coming is None}
        done, hanging = ray.wait(list(asked), num_returns=len(asked), timeout=_CLOSE_TIMEOUT_S) if asked else ([], [])
        late = f"its environments were not closed within {_CLOSE_TIMEOUT_S:g} s"
        faults = [Fault(FaultKind.CLOSES_FAILED, asked[ref], late, "", 0) for ref in hanging]
        for ref in done:
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayActorError as error:
                died = f"it died while its environments were closed: {cause(error)}"
                faults.append(Fault(FaultKind.CLOSES_FAILED, asked[ref], died, "", 0))
                continue
            if isinstance(answer, Raised):
                raise as_exception(answer)
            faults += answer
        return tuple(faults)

    async def all_present(self) -> None:
        """Wait until all workers are ready; raises what kept a replacement from starting."""
        while absent := [worker for worker in self.all if not worker.is_present()]:
            await asyncio.gather(*(_settled(worker.coming) for worker in absent))

    async def _present(self) -> list[RemoteWorker]:
        if present := [worker for worker in self.all if worker.coming is None or worker.is_present()]:
            return present
        coming = [asyncio.ensure_future(_settled(worker.coming)) for worker in self.all]
        done, waiting = await asyncio.wait(
            coming, timeout=limits.REPLACING_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in waiting:
            task.cancel()
        if not done:
            raise self._nobody_is_left()
        return await self._present()

    def _nobody_is_left(self) -> ActorLost:
        return ActorLost(
            f"all rollout workers died, and none was back within {limits.REPLACING_TIMEOUT_S:g} s: "
            f"{self._actors.lack(self.all[0].what)}"
        )


async def _settled(ref: Any) -> None:
    await asyncio.wait([asyncio.wrap_future(ref.future())])


async def _answers(workers: Sequence[RemoteWorker], refs: Sequence[Any]) -> list[Any]:
    """Return each worker's answer, None if it was lost (then it is replaced); raises what a worker raised."""
    asked = [worker.actor for worker in workers]
    found = await asyncio.gather(*refs, return_exceptions=True)
    for worker, actor, answer in zip(workers, asked, found, strict=True):
        if isinstance(answer, Raised):
            raise as_exception(answer)
        if isinstance(answer, ray.exceptions.RayActorError):
            if worker.actor is actor:  # else another call has seen it before
                worker.lost(answer)
        elif isinstance(answer, ray.exceptions.ObjectLostError):
            worker.forget()
        elif isinstance(answer, BaseException):
            raise answer
    return [None if isinstance(answer, _LOST) else answer for answer in found]
