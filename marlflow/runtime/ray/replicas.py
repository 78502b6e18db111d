"""Data-parallel replicas of a learner, one on each rollout worker; each runs the stages on its own shard.

When a worker is lost, the other replicas leave the group. After its restart all form a new group, with a survivor's
parameters, else the last checkpointed ones. An update in progress is lost, and the version then exceeds all published
ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

import ray

from marlflow.base.errors import ActorLost, FaultKind
from marlflow.flow import Outcome, StageCall, StageTimes
from marlflow.flow.protocols import OperatorRaised
from marlflow.runtime.ray import actors as limits
from marlflow.runtime.ray.actors import cause
from marlflow.runtime.ray.handles import LearnerHandle
from marlflow.runtime.ray.host import ChainResult, RemoteError, as_exception, check_sendable
from marlflow.runtime.ray.remote_worker import RemoteWorker
from marlflow.runtime.ray.workers import RayWorkers
from marlflow.runtime.spec import LearnerSpec
from marlflow.runtime.stage_chain import ON_WORKERS, payloads_by_worker
from marlflow.sampling.receipts import Fault

_UNAVAILABLE = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
_CHAINS = count()
"""Numbers chains across all learners, because they share the workers."""


class ReplicasHandle(LearnerHandle):
    """The driver's handle of all replicas; unpickled in a worker, it becomes that worker's."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.scheduled = values
        for actor in self.place.host.actors:
            actor.set_schedule.remote(self.key, values)

    def restore(self, kept: bytes) -> Any:
        self.kept = kept
        return self.resume_all(kept, None)

    def resume_all(self, kept: Any, above: int | None) -> Any:
        """Load `kept` into all replicas, above version `above` if given; return a reference to the version."""
        # Reversed, so that the version and weights recorded last are the first replica's, which leads the group.
        for actor in reversed(self.place.host.actors):
            if above is None:
                load = actor.load_learner.options(num_returns=self._num_returns)
                version, *self._flats = load.remote(self.key, kept)
            else:
                resume = actor.resume_learner.options(num_returns=self._num_returns)
                version, *self._flats = resume.remote(self.key, kept, above)
        return version

    @property
    def resume_floor(self) -> int:
        """The version to exceed after a loss: so far above published ones that their rows count as stale."""
        # An update in flight may have published one more version.
        return self.version + 1 + self.max_staleness


class RayReplicas:
    """All replicas of a learner, regrouped after a loss."""

    def __init__(self, spec: LearnerSpec, workers: RayWorkers, on_fault: Callable[[Fault], None]) -> None:
        self._workers, self._on_fault = workers, on_fault
        self.learner = ReplicasHandle(spec, ReplicasPlace(self))
        self.key = self.learner.key
        self.chains: dict[int, Sequence[StageCall]] = {}
        self._group_generations: list[int] = []
        self._regrouping: asyncio.Future[None] | None = None

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
        self._group_generations = self.generations
        first, *others = self.actors
        size = len(self._group_generations)
        address = first.lead.remote(self.key, size)
        joined = [actor.follow.remote(self.key, address, rank, size) for rank, actor in enumerate(others, 1)]
        return [first.meet.remote(self.key), *joined]

    # -- calls of one replica, when nothing is in flight -------------------------------------------------------------

    @property
    def actor(self) -> Any:
        """A surviving replica's actor; raises ActorLost if there is none."""
        if not self._survivors:
            raise ActorLost(f"all replicas of {self.key} were lost, and have not met again")
        return self._survivors[0].actor

    @property
    def name(self) -> str:
        """The name of the worker of `actor`, under which a loss is reported."""
        return self._survivors[0].name if self._survivors else self.key

    def restart_blocking(self, error: Exception) -> None:
        """Replace the worker that was called."""
        self._survivors[0].replace_lost(error)

    @property
    def generations(self) -> list[int]:
        """The generation of each worker's process."""
        return [worker.generation for worker in self.workers]

    @property
    def _survivors(self) -> list[RemoteWorker]:
        return [
            worker
            for worker, generation in zip(self.workers, self._group_generations, strict=True)
            if worker.generation == generation
        ]

    # -- calls of all replicas ----------------------------------------------------------------------------------------

    async def wait_until_ready(self) -> None:
        """Wait until all replicas form a group."""
        if self._group_generations != self.generations:
            await self._regroup(None)

    async def check(self) -> None:
        """Wait until all replicas are ready; update the published weights."""
        await self.wait_until_ready()
        returns = 1 + len(self.learner.policies)
        calls = [actor.published.options(num_returns=returns).remote(self.key) for actor in self.actors]
        answers = await self.answers(self.generations, [version for version, *_ in calls])
        if any(isinstance(answer, _UNAVAILABLE) for answer in answers):
            await self.wait_until_ready()
        else:
            self.learner.set_published(answers[0], calls[0][1:])

    async def answers(self, generations: Sequence[int], refs: Sequence[Any]) -> list[Any]:
        """Return each replica's answer, or its error if it was lost and is being replaced."""
        calls = zip(self.workers, generations, refs, strict=True)
        return await asyncio.gather(*(self._answer(worker, generation, ref) for worker, generation, ref in calls))

    async def _answer(self, worker: RemoteWorker, generation: int, ref: Any) -> Any:
        try:
            return await ref
        except ray.exceptions.RayActorError as error:
            # Otherwise another call has already replaced it.
            if worker.generation == generation:
                worker.replace_lost(error)
            return error
        # Its rows were lost with the machine that stored them, so it cannot take part in the update.
        except ray.exceptions.ObjectLostError as error:
            # The others must not wait for it.
            worker.actor.disband.remote(self.key)
            return error

    async def restart(self, error: BaseException, rows: int) -> None:
        """Report a lost update of this many rows, and regroup with a new version."""
        self._on_fault(Fault(FaultKind.LEARNERS_LOST, self.key, cause(error), "", rows))
        await self._regroup(self.learner.resume_floor)

    async def _regroup(self, above: int | None) -> None:
        if self._regrouping is None:
            self._regrouping = asyncio.ensure_future(self._regroup_until_complete(above))
        await asyncio.shield(self._regrouping)

    async def _regroup_until_complete(self, above: int | None) -> None:
        try:
            async with asyncio.timeout(limits.RESTART_TIMEOUT_S):
                while not await self._try_regroup(above):
                    pass
        except TimeoutError:
            text = f"the replicas of {self.key} did not meet again within {limits.RESTART_TIMEOUT_S:g} s"
            raise ActorLost(text) from None
        finally:
            self._regrouping = None

    async def _try_regroup(self, above: int | None) -> bool:
        await self._workers.wait_for_all()
        # A survivor's parameters are newer than the last checkpoint.
        kept = self._survivors[0].actor.kept_learner.remote(self.key) if self._survivors else self.learner.kept
        above = above if self._survivors else self.learner.resume_floor
        for actor in self.actors:
            actor.disband.remote(self.key)
            for chain, calls in self.chains.items():
                actor.prepare.remote(chain, list(calls))
            if self.learner.scheduled:
                actor.set_schedule.remote(self.key, self.learner.scheduled)
        version = self.learner.resume_all(kept, above)
        joined = self.start()
        answers = await self.answers(self._group_generations, joined)
        answers.append(await self._answer(self.workers[0], self._group_generations[0], version))
        # Another worker was lost meanwhile: the caller tries again.
        if any(isinstance(answer, _UNAVAILABLE) for answer in answers):
            return False
        for answer in answers:
            if isinstance(answer, RemoteError):
                raise ActorLost(f"the replicas of {self.key} did not resume: {answer.text}") from as_exception(answer)
        self.learner.confirm_restored(answers[-1])
        return True


class ReplicasPlace:
    """All rollout workers as one place: each runs the stages on its own shard."""

    name = ON_WORKERS

    def __init__(self, host: RayReplicas) -> None:
        self.host = host

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name} stay on the driver")

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Awaitable[Outcome]]:
        check_sendable(calls, self.name)
        chain = next(_CHAINS)
        self.host.chains[chain] = calls
        unconfirmed = [(self.host.generations, [a.prepare.remote(chain, list(calls)) for a in self.host.actors])]
        learns = next((at for at, stage in enumerate(calls) if stage.traits.updates), len(calls))

        async def call(items: Sequence[Any]) -> Outcome:
            # The first call raises errors of sending the chain.
            while unconfirmed:
                await self.host.answers(*unconfirmed.pop())
            outcomes = [await self._run_update(chain, item, len(calls), learns) for item in items]
            times = [StageTimes.total(each) for each in zip(*(outcome.times for outcome in outcomes), strict=True)]
            lost = sum(outcome.lost for outcome in outcomes)
            return Outcome([output for outcome in outcomes for output in outcome.outputs], times, lost)

        return call

    async def _run_update(self, chain: int, item: Any, stages: int, learns: int) -> Outcome:
        replicas = self.host
        shards = payloads_by_worker(item, len(replicas.workers))
        await replicas.wait_until_ready()
        refs: list[Any] = []
        flats: list[Any] = []
        returns = 1 + len(replicas.learner.policies)
        for actor, payloads in zip(replicas.actors, shards, strict=True):
            # All replicas have the same parameters, so only the first returns them.
            if not flats:
                learn = actor.learn.options(num_returns=returns)
                answer, *flats = learn.remote(replicas.key, chain, returns, *payloads)
            else:
                answer = actor.learn.remote(replicas.key, chain, 1, *payloads)
            refs.append(answer)
        answers = await replicas.answers(replicas.generations, refs)
        if (error := _update_error(answers)) is not None:
            now_s = time.time()
            await replicas.restart(error, item.rows)
            return Outcome([], [StageTimes(now_s, now_s, 0)] * stages, lost=1)
        receipts: list[ChainResult] = answers
        version = receipts[0].version
        if version is not None:
            replicas.learner.set_published(version, flats)
            for worker in replicas.workers:
                for policy in replicas.learner.policies:
                    worker.mark_learned(policy, version)
        by_stage = zip(*(receipt.times for receipt in receipts), strict=True)
        times = [_parallel_times(each, is_shared=at >= learns) for at, each in enumerate(by_stage)]
        return Outcome([receipts[0].outputs[0]], times)


def _update_error(answers: Sequence[Any]) -> BaseException | None:
    failed = [answer for answer in answers if isinstance(answer, RemoteError)]
    for answer in failed:
        if not isinstance(answer.error, ActorLost):
            raise OperatorRaised(answer.position, answer.text) from as_exception(answer)
    # ActorLost from a replica is only a consequence of the loss of another.
    gone = [answer for answer in answers if isinstance(answer, _UNAVAILABLE)]
    return next(iter([*gone, *(as_exception(answer) for answer in failed)]), None)


def _parallel_times(times: Sequence[StageTimes], is_shared: bool) -> StageTimes:
    # From the update on, each worker's stages count the rows of all workers.
    rows = times[0].rows if is_shared else sum(each.rows for each in times)
    return StageTimes(min(each.began_s for each in times), max(each.ended_s for each in times), rows)
