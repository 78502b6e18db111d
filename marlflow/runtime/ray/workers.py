"""Rollout workers as actors: one call per worker and round; the driver opens receipts, never rows.

A lost rollout worker is replaced (restarted); meanwhile the others continue.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from marlflow.base.errors import ActorLost, FaultKind
from marlflow.base.progress import progress
from marlflow.batches.items import Weights
from marlflow.runtime.protocol import make_round
from marlflow.runtime.ray import actors as limits
from marlflow.runtime.ray.actors import Actors, cause
from marlflow.runtime.ray.evaluation_shares import EvaluationShares
from marlflow.runtime.ray.host import RemoteError, as_exception
from marlflow.runtime.ray.inference_members import by_reference
from marlflow.runtime.ray.message_channel import Inbox
from marlflow.runtime.ray.remote_worker import RemoteWorker, SharedRequest
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.protocol import Assign, EvaluationRequest, Request, Round
from marlflow.sampling.receipts import Evaluated, Fault, Receipt
from marlflow.sampling.watchdog import CLOSE_TIMEOUT_S

_LOST = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
"""Errors instead of an answer: the worker's process is lost, or weights for it are, with their machine."""

log = logging.getLogger("marlflow")
_MAX_FAILED_ATTEMPTS = 10
# Longer than a process takes that can be interrupted.
_CLOSE_TIMEOUT_S = 1.5 * CLOSE_TIMEOUT_S


class RayWorkers:
    """The workers of a run with these numbers: all rollout workers, or all referees.

    `inference` computes their actions; None: each worker does. `current_weights` replaces requested weights that were
    lost with their machine.
    """

    def __init__(
        self,
        spec: RunSpec,
        actors: Actors,
        on_fault: Callable[[Fault], None],
        current_weights: Callable[[], Awaitable[Mapping[str, Weights]]],
        inference: Any = None,
        inbox: Inbox | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self._learning = spec.learning
        self._actors = actors
        self._inference = inference
        self._current_weights = current_weights
        numbers = range(spec.num_workers) if numbers is None else numbers
        self._kind = "rollout worker" if numbers[0] < spec.num_workers else "referee"
        self.all = [RemoteWorker(spec, number, actors, on_fault, inference, inbox) for number in numbers]
        self._rounds_in_flight: dict[asyncio.Task[Round | None], RemoteWorker] = {}

    def start(self) -> list[Any]:
        """Start all workers; return references that resolve when they are ready."""
        return [worker.start() for worker in self.all]

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        learning = self._learning
        for _ in range(_MAX_FAILED_ATTEMPTS):
            ready = await self._ready_workers()
            shared = SharedRequest(self._as_sent(request))
            calls = [worker.collect(self._request_to(worker, shared.request, assign), shared) for worker in ready]
            answers: list[Receipt | None] = await _answers(ready, [refs[0] for refs in calls])
            receipts, payloads = [], []
            for worker, receipt, refs in zip(ready, answers, calls, strict=True):
                # The rows of a lost worker are lost; its replacement takes part in the next round.
                if receipt is not None:
                    worker.record_progress(receipt)
                    receipts.append(receipt)
                    payloads.append(dict(zip(learning, refs[1:], strict=True)))
            # A round needs one worker at least.
            if receipts:
                return make_round(request.round, receipts, payloads)
            request = replace(request, weights={**request.weights, **await self._current_weights()})
        raise ActorLost(f"{_MAX_FAILED_ATTEMPTS} times in a row no rollout worker lived through its round")

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        for _ in range(_MAX_FAILED_ATTEMPTS):
            # Workers that have delivered begin their next round with the latest request.
            if request is not None:
                self._start_rounds(request, await self._ready_workers(), assign)
            await asyncio.wait(self._rounds_in_flight, return_when=asyncio.FIRST_COMPLETED)
            task = next(task for task in self._rounds_in_flight if task.done())
            del self._rounds_in_flight[task]
            if (round := task.result()) is not None:
                return round
            if request is not None:
                request = replace(request, weights={**request.weights, **await self._current_weights()})
            elif not self._rounds_in_flight:
                return Round(-1, [], [])
        raise ActorLost(f"{_MAX_FAILED_ATTEMPTS} times in a row no rollout worker lived through its round")

    def _request_to(self, worker: RemoteWorker, request: Request, assign: Assign | None) -> Request:
        return request if assign is None else assign(request, worker.env_indices)

    def _as_sent(self, request: Request) -> Request:
        return request if self._inference is None else replace(request, weights=by_reference(request.weights))

    @property
    def under_way(self) -> int:
        return len(self._rounds_in_flight)

    def _start_rounds(self, request: Request, ready: Sequence[RemoteWorker], assign: Assign | None) -> None:
        busy = set(self._rounds_in_flight.values())
        shared = SharedRequest(self._as_sent(request))
        for worker in ready:
            if worker not in busy:
                refs = worker.collect(self._request_to(worker, shared.request, assign), shared)
                self._rounds_in_flight[asyncio.ensure_future(self._round_of_one(request.round, worker, refs))] = worker

    async def _round_of_one(self, number: int, worker: RemoteWorker, refs: Sequence[Any]) -> Round | None:
        (receipt,) = await _answers([worker], refs[:1])
        if receipt is None:
            return None
        worker.record_progress(receipt)
        return make_round(number, [receipt], [dict(zip(self._learning, refs[1:], strict=True))])

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        ends_s = None if request.within_s is None else time.monotonic() + request.within_s
        episodes, shares = request.episodes, EvaluationShares(len(request.episodes))
        parts: list[Evaluated] = []
        while left := shares.left:
            ready = await self._ready_workers()
            if shares.has_lost and ends_s is not None:
                request = replace(request, within_s=max(0.0, ends_s - time.monotonic()))
                if not request.within_s:
                    parts.append(Evaluated((), not_begun=left))
                    break
            progress("playing episodes", len(episodes) - left, len(episodes))
            assigned = list(zip(ready, shares.deal(len(ready)), strict=False))
            calls = [worker.evaluate(self._share(request, share)) for worker, share in assigned]
            answers: list[Evaluated | None] = await _answers([worker for worker, _ in assigned], calls)
            parts += [part for part in answers if part is not None]
            lost = [share for part, (_, share) in zip(answers, assigned, strict=True) if part is None]
            for index in shares.answered(lost, len(lost) == len(assigned)):
                log.warning("evaluation episode %d is left out: each process that played it ended", episodes[index])
            if times := shares.in_vain:
                raise ActorLost(f"{times} times in a row no {self._kind} lived through its evaluation")
            if shares.attempts:
                request = replace(request, weights={**request.weights, **await self._current_weights()})
        evaluated = sum(parts, Evaluated(()))
        in_order = sorted(evaluated.episodes, key=lambda result: result.episode)
        return replace(evaluated, episodes=tuple(in_order))

    def _share(self, request: EvaluationRequest, indices: Sequence[int]) -> EvaluationRequest:
        matchups = None if request.matchups is None else [request.matchups[index] for index in indices]
        weights = request.weights if self._inference is None else by_reference(request.weights)
        episodes = [request.episodes[index] for index in indices]
        return replace(request, episodes=episodes, weights=weights, matchups=matchups)

    def request_states(self) -> list[tuple[RemoteWorker, Any]]:
        """Request each worker's state, of a worker being restarted from another one.

        Returns pairs of the worker asked and a reference. Blocks if none is ready; raises ActorLost if none comes back.
        """
        while not (ready := [worker for worker in self.all if worker.is_ready()]):
            if not ray.wait([worker.ready_ref for worker in self.all], timeout=limits.RESTART_TIMEOUT_S)[0]:
                raise self._no_worker_left()
        substitute = ready[0]
        return [
            (worker, worker.actor.kept.remote())
            if worker in ready
            else (substitute, substitute.actor.beginning.remote(*worker.start_position))
            for worker in self.all
        ]

    def close(self) -> tuple[Fault, ...]:
        """Close all environments within a bounded time; return the faults."""
        calls = {worker.actor.close.remote(): worker.name for worker in self.all if worker.ready_ref is None}
        done, hanging = ray.wait(list(calls), num_returns=len(calls), timeout=_CLOSE_TIMEOUT_S) if calls else ([], [])
        late = f"its environments were not closed within {_CLOSE_TIMEOUT_S:g} s"
        faults = [Fault(FaultKind.CLOSES_FAILED, calls[ref], late, "", 0) for ref in hanging]
        for ref in done:
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayActorError as error:
                died = f"it died while its environments were closed: {cause(error)}"
                faults.append(Fault(FaultKind.CLOSES_FAILED, calls[ref], died, "", 0))
                continue
            if isinstance(answer, RemoteError):
                raise as_exception(answer)
            faults += answer
        return tuple(faults)

    async def wait_for_all(self) -> None:
        """Wait until all workers are ready; raises the error that kept a replacement from starting."""
        while absent := [worker for worker in self.all if not worker.is_ready()]:
            await asyncio.gather(*(_wait_for(worker.ready_ref) for worker in absent))

    async def _ready_workers(self) -> list[RemoteWorker]:
        if ready := [worker for worker in self.all if worker.ready_ref is None or worker.is_ready()]:
            return ready
        # All are being restarted: wait for the first that is ready.
        waits = [asyncio.ensure_future(_wait_for(worker.ready_ref)) for worker in self.all]
        done, waiting = await asyncio.wait(waits, timeout=limits.RESTART_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if not done:
            raise self._no_worker_left()
        return await self._ready_workers()

    def _no_worker_left(self) -> ActorLost:
        return ActorLost(
            f"all {self._kind}s died, and none was back within {limits.RESTART_TIMEOUT_S:g} s: "
            f"{self._actors.describe_shortage(self.all[0].name)}"
        )


async def _wait_for(ref: Any) -> None:
    # Not `await ref`, which would raise: errors are handled when the worker is checked.
    future = asyncio.wrap_future(ref.future())
    # asyncio prints exceptions that nothing has looked at.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([future])


def _unpickled(answer: Any) -> Any:
    # Receipts come as bytes.
    return pickle.loads(answer) if isinstance(answer, bytes) else answer  # noqa: S301  made by a worker of this run


async def _answers(workers: Sequence[RemoteWorker], refs: Sequence[Any]) -> list[Any]:
    # A worker may be replaced while this waits.
    actors = [worker.actor for worker in workers]
    answers = [_unpickled(each) for each in await asyncio.gather(*refs, return_exceptions=True)]
    for worker, actor, answer in zip(workers, actors, answers, strict=True):
        if isinstance(answer, RemoteError):
            raise as_exception(answer)
        if isinstance(answer, ray.exceptions.RayActorError):
            # Otherwise another call has already replaced it.
            if worker.actor is actor:
                worker.replace_lost(answer)
        elif isinstance(answer, ray.exceptions.ObjectLostError):
            # It is unknown which weights arrived before the loss: send all again.
            worker.resend_weights()
        elif isinstance(answer, BaseException):
            raise answer
        else:
            worker.note_answer()
    return [None if isinstance(answer, _LOST) else answer for answer in answers]
