"""Data-parallel replicas of a learner, one on each rollout worker; each runs the stages on its own shard.

When a worker is lost, its replica is lost too, and the others leave the group. After the restart all form a new group
with the parameters of a surviving replica, else with the last checkpointed ones. An update in progress is lost, and
learning resumes with a version above all published ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

import ray

from marlflow.base.errors import ActorLost
from marlflow.base.fault_kind import FaultKind
from marlflow.flow import Outcome, StageCall, StageTimes
from marlflow.flow.operators import OperatorRaised
from marlflow.runtime.ray import actors as limits
from marlflow.runtime.ray.actors import cause
from marlflow.runtime.ray.handles import LearnerHandle
from marlflow.runtime.ray.host import Raised, Ran, as_exception
from marlflow.runtime.ray.remote_worker import RemoteWorker
from marlflow.runtime.ray.workers import RayWorkers
from marlflow.runtime.sharding import ON_WORKERS, payloads_by_worker
from marlflow.runtime.spec import LearnerSpec
from marlflow.sampling.receipts import Fault

_GONE = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
_CHAINS = count()
"""The chains of several learners are on the same workers."""


class ReplicasHandle(LearnerHandle):
    """The driver's handle of all replicas; unpickled in a worker, it becomes that worker's replica."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.scheduled = values
        for actor in self.place.hosted.actors:
            actor.set_schedule.remote(self.key, values)

    def restored(self, kept: bytes) -> Any:
        self.kept = kept
        return self.taken_up_by_all(kept, None)

    def taken_up_by_all(self, kept: Any, above: int | None) -> Any:
        """Load the state `kept` into all replicas; return a reference to the version of one.

        `above` is the version to exceed; None resumes exactly the saved version.
        """
        for actor in reversed(self.place.hosted.actors):
            if above is None:
                answer, *self._flats = actor.load_learner.options(num_returns=self._answers).remote(self.key, kept)
            else:
                answer, *self._flats = actor.take_up.options(num_returns=self._answers).remote(self.key, kept, above)
        return answer

    @property
    def highest(self) -> int:
        """Exceeds every version possibly published, including by an update in flight.

        It does so by more than max_staleness, so rows of the lost learner are dropped.
        """
        return self.version + 1 + self.max_staleness


class RayReplicas:
    """The replicas of a learner on all rollout workers, regrouped after the loss of any."""

    def __init__(self, spec: LearnerSpec, workers: RayWorkers, on_fault: Callable[[Fault], None]) -> None:
        self._workers, self._on_fault = workers, on_fault
        self.learner = ReplicasHandle(spec, ReplicasPlace(self))
        self.key = self.learner.key
        self.chains: dict[int, Sequence[StageCall]] = {}
        self._met: list[int] = []
        self._meeting: asyncio.Future[None] | None = None

    @property
    def workers(self) -> list[RemoteWorker]:
        """All rollout workers."""
        return self._workers.all

    @property
    def actors(self) -> list[Any]:
        """The current actor of each worker."""
        return [worker.actor for worker in self.workers]

    def start(self) -> list[Any]:
        """Form the group; return one reference per worker that resolves when it has joined."""
        self._met = self.lives
        first, *others = self.actors
        size = len(self._met)
        address = first.lead.remote(self.key, size)
        joined = [actor.follow.remote(self.key, address, rank, size) for rank, actor in enumerate(others, 1)]
        return [first.meet.remote(self.key), *joined]

    # -- for those who ask one of them, when nothing is under way ----------------------------------------------------

    @property
    def actor(self) -> Any:
        """A surviving replica's actor; raises ActorLost if none is left before the next regrouping."""
        if not self._survivors:
            raise ActorLost(f"all replicas of {self.key} were lost, and have not met again")
        return self._survivors[0].actor

    @property
    def name(self) -> str:
        """The process name of `actor`: that worker's, so that a loss is reported once."""
        return self._survivors[0].what if self._survivors else self.key

    def revive_now(self, error: Exception) -> None:
        """Replace the worker that was called; the next call goes to another."""
        self._survivors[0].lost(error)

    @property
    def lives(self) -> list[int]:
        """The current generation of each worker's process."""
        return [worker.lives for worker in self.workers]

    @property
    def _survivors(self) -> list[RemoteWorker]:
        return [worker for worker, life in zip(self.workers, self._met, strict=True) if worker.lives == life]

    # -- while they learn ---------------------------------------------------------------------------------------------

    async def present(self) -> None:
        """Wait until all workers are ready and their replicas form a group."""
        if self._met != self.lives:
            await self._met_again(None)

    async def look(self) -> None:
        """Wait until all replicas are ready; update the published weights."""
        await self.present()
        returns = 1 + len(self.learner.policies)
        asked = [actor.published.options(num_returns=returns).remote(self.key) for actor in self.actors]
        found = await self.answers(self.lives, [version for version, *_ in asked])
        if any(isinstance(answer, _GONE) for answer in found):
            await self.present()
        else:
            self.learner.hand_out(found[0], asked[0][1:])

    async def answers(self, lives: Sequence[int], refs: Sequence[Any]) -> list[Any]:
        """Return each replica's answer, or its error if it was lost (then its worker is replaced)."""
        asked = zip(self.workers, lives, refs, strict=True)
        return await asyncio.gather(*(self._answer(worker, life, ref) for worker, life, ref in asked))

    async def _answer(self, worker: RemoteWorker, life: int, ref: Any) -> Any:
        try:
            return await ref
        except ray.exceptions.RayActorError as error:
            if worker.lives == life:  # nobody else has noticed
                worker.lost(error)
            return error
        except ray.exceptions.ObjectLostError as error:  # with the machine that had the rows
            worker.actor.disband.remote(self.key)  # the others must not wait for it
            return error

    async def revive(self, error: BaseException, rows: int) -> None:
        """Report the loss of an update of this many rows, and regroup with a new version."""
        self._on_fault(Fault(FaultKind.LEARNERS_LOST, self.key, cause(error), "", rows))
        await self._met_again(self.learner.highest)

    async def _met_again(self, above: int | None) -> None:
        if self._meeting is None:
            self._meeting = asyncio.ensure_future(self._meet_again(above))
        await asyncio.shield(self._meeting)

    async def _meet_again(self, above: int | None) -> None:
        try:
            async with asyncio.timeout(limits.REPLACING_TIMEOUT_S):
                while not await self._meets(above):
                    pass
        except TimeoutError:
            text = f"the replicas of {self.key} did not meet again within {limits.REPLACING_TIMEOUT_S:g} s"
            raise ActorLost(text) from None
        finally:
            self._meeting = None

    async def _meets(self, above: int | None) -> bool:
        """Try to form a group of all workers; return whether it succeeded. Raises ActorLost if it cannot."""
        await self._workers.all_present()
        kept = self._survivors[0].actor.kept_learner.remote(self.key) if self._survivors else self.learner.kept
        above = above if self._survivors else self.learner.highest
        for actor in self.actors:
            actor.disband.remote(self.key)
            for chain, calls in self.chains.items():
                actor.prepare.remote(chain, list(calls))
            if self.learner.scheduled:
                actor.set_schedule.remote(self.key, self.learner.scheduled)
        version = self.learner.taken_up_by_all(kept, above)
        meeting = self.start()
        met = await self.answers(self._met, meeting)
        found = [*met, await self._answer(self.workers[0], self._met[0], version)]
        if any(isinstance(answer, _GONE) for answer in found):
            return False
        for answer in found:
            if isinstance(answer, Raised):
                raise ActorLost(f"the replicas of {self.key} could not go on: {answer.text}") from as_exception(answer)
        self.learner.goes_on(found[-1])
        return True


class ReplicasPlace:
    """All rollout workers as one place: each runs the stages on its own shard."""

    name = ON_WORKERS

    def __init__(self, hosted: RayReplicas) -> None:
        self.hosted = hosted

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name} stay on the driver")

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Awaitable[Outcome]]:
        chain = next(_CHAINS)
        self.hosted.chains[chain] = calls
        arriving = [(self.hosted.lives, [a.prepare.remote(chain, list(calls)) for a in self.hosted.actors])]
        learns = next((at for at, stage in enumerate(calls) if stage.traits.updates), len(calls))

        async def call(items: Sequence[Any]) -> Outcome:
            while arriving:  # whatever kept the calls from arriving is raised here
                await self.hosted.answers(*arriving.pop())
            outcomes = [await self._learned(chain, item, len(calls), learns) for item in items]
            times = [_one_after_the_other(each) for each in zip(*(outcome.times for outcome in outcomes), strict=True)]
            lost = sum(outcome.lost for outcome in outcomes)
            return Outcome([output for outcome in outcomes for output in outcome.outputs], times, lost)

        return call

    async def _learned(self, chain: int, item: Any, stages: int, learns: int) -> Outcome:
        """Run the stages on all workers with one item; the output is the same on all."""
        replicas = self.hosted
        shards = payloads_by_worker(item, len(replicas.workers))
        await replicas.present()
        refs: list[Any] = []
        flats: list[Any] = []
        returns = 1 + len(replicas.learner.policies)
        for actor, payloads in zip(replicas.actors, shards, strict=True):
            if not flats:  # one is asked for the weights, for all others
                asked = actor.learn.options(num_returns=returns)
                answer, *flats = asked.remote(replicas.key, chain, returns, *payloads)
            else:
                answer = actor.learn.remote(replicas.key, chain, 1, *payloads)
            refs.append(answer)
        found = await replicas.answers(replicas.lives, refs)
        if (error := _lost(found)) is not None:
            now_s = time.time()
            await replicas.revive(error, item.rows)
            return Outcome([], [StageTimes(now_s, now_s, 0)] * stages, lost=1)
        receipts: list[Ran] = found
        version = receipts[0].version
        if version is not None:
            replicas.learner.hand_out(version, flats)
            for worker in replicas.workers:
                for policy in replicas.learner.policies:
                    worker.has_learned(policy, version)
        by_stage = zip(*(receipt.times for receipt in receipts), strict=True)
        times = [_at_once(each, is_shared=at >= learns) for at, each in enumerate(by_stage)]
        return Outcome([receipts[0].outputs[0]], times)


def _lost(answers: Sequence[Any]) -> BaseException | None:
    """Return why an update was lost, or None; raises what an operator raised on a worker."""
    failed = [answer for answer in answers if isinstance(answer, Raised)]
    for answer in failed:
        if not isinstance(answer.error, ActorLost):
            raise OperatorRaised(answer.position, answer.text) from as_exception(answer)
    gone = [answer for answer in answers if isinstance(answer, _GONE)]
    return next(iter([*gone, *(as_exception(answer) for answer in failed)]), None)


def _at_once(times: Sequence[StageTimes], is_shared: bool) -> StageTimes:
    """Merge the times of a stage that ran on all workers in parallel; `is_shared`: all processed the same rows."""
    rows = times[0].rows if is_shared else sum(one.rows for one in times)
    return StageTimes(min(one.began_s for one in times), max(one.ended_s for one in times), rows)


def _one_after_the_other(times: Sequence[StageTimes]) -> StageTimes:
    began_s = min(one.began_s for one in times)
    took_s = sum(one.ended_s - one.began_s for one in times)
    return StageTimes(began_s, began_s + took_s, sum(one.rows for one in times))
