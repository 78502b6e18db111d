"""Driver-side handles of learners and replays, and the restart of their actors after a failure.

An actor fails with everything it hosts and with its learner's followers. A restarted learner has its last checkpointed
state and a version above all published ones; a restarted replay is empty and numbers its rows above all earlier ones.
Work in flight is lost, never repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeVar

import ray

from marlflow.algorithms.algorithm import TorchAlgorithm
from marlflow.base.errors import ActorLost, FaultKind
from marlflow.batches.items import Inserted, Weights
from marlflow.flow import StageCall
from marlflow.runtime.ray.actors import RESTART_TIMEOUT_S, Actors, cause, never_ran
from marlflow.runtime.ray.host import Host, RemoteError, as_exception, resident
from marlflow.runtime.spec import LearnerSpec
from marlflow.sampling.receipts import Fault

FOLLOWER_CHECK_S = 10.0
"""Seconds between two checks for lost followers while a data-parallel learner works on a call."""
FAR_ABOVE = 2**40
"""A restarted replay numbers its rows from a multiple of this: more than a replay ever receives."""


class Handle:
    """A learner or replay on the driver; unpickled in the hosting actor, it becomes the object itself."""

    def __init__(self, name: str, key: str, place: Any) -> None:
        self.name, self.key, self.place = name, key, place
        self.scheduled: Mapping[str, float] = {}
        self._schedule_call: Any = None

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return resident, (self.key,)

    @property
    def actor(self) -> Any:
        """The current hosting actor, which changes on restart."""
        return self.place.host.actor

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set scheduled values for later calls without waiting; raises the error of an earlier call."""
        if self._schedule_call is not None and ray.wait([self._schedule_call], timeout=0)[0]:
            # After a restart the actor is sent the scheduled values again.
            with suppress(ray.exceptions.RayActorError):
                if isinstance(answer := ray.get(self._schedule_call), RemoteError):
                    raise as_exception(answer)
        self.scheduled = values
        self._schedule_call = self.actor.set_schedule.remote(self.key, values)


AnyHandle = TypeVar("AnyHandle", bound=Handle)


class LearnerHandle(Handle):
    """The driver's handle of a learner.

    `kept` is its last checkpointed state, serialized. Its plan drops rows staler than `max_staleness` (DropStale).
    """

    def __init__(self, spec: LearnerSpec, place: Any) -> None:
        super().__init__(spec.name, f"learner {spec.name}", place)
        algorithm, self.policies, self.seats = spec.algorithm, spec.members, spec.seats
        self.trains_on, self.loss_groups = spec.trains_on, spec.loss_groups
        self.has_replay = algorithm.capabilities.replay
        self.max_staleness = algorithm.max_staleness if isinstance(algorithm, TorchAlgorithm) else 0
        self.published = {policy: Weights(-1, None) for policy in self.policies}
        self.kept: bytes | None = None
        self._flats: Sequence[Any] = ()

    @property
    def version(self) -> int:
        """The last published version."""
        return next(iter(self.published.values())).version

    def set_published(self, version: int, flats: Sequence[Any]) -> None:
        """Record a published version; `flats` has one reference per policy."""
        self.published = {p: Weights(version, flat) for p, flat in zip(self.policies, flats, strict=True)}

    def request_first_weights(self) -> None:
        """Request the weights of a newly built learner."""
        refs = self.actor.weights.options(num_returns=len(self.policies)).remote(self.key)
        self.set_published(0, refs if len(self.policies) > 1 else [refs])

    @property
    def _num_returns(self) -> int:
        return 1 + len(self.policies)

    def resume(self, actor: Any, items: int) -> Any:
        """Load the last checkpointed state after a restart; return a reference to the version."""
        # Each of the `items` in flight may have published a version, whose rows must count as stale.
        above = self.version + items + self.max_staleness
        version, *self._flats = actor.resume_learner.options(num_returns=self._num_returns).remote(
            self.key, self.kept, above
        )
        return version

    def restore(self, kept: bytes) -> Any:
        """Load a checkpointed state; return a reference to the version."""
        self.kept = kept
        version, *self._flats = self.actor.load_learner.options(num_returns=self._num_returns).remote(self.key, kept)
        return version

    def reset(self, start: LearnerSpec, acting: Sequence[Any]) -> None:
        """Let the learner continue as a new one of `start`, and wait for that."""
        self._continue(self.actor.reset_learner, start, *acting)

    def copy(self, state: Any) -> None:
        """Let the learner continue with the serialized state of another, and wait for that."""
        self._continue(self.actor.copy_learner, state)

    def _continue(self, method: Any, *arguments: Any) -> None:
        answer, kept, *flats = method.options(num_returns=1 + self._num_returns).remote(self.key, *arguments)
        version = ray.get(answer)
        if isinstance(version, RemoteError):
            raise as_exception(version)
        # A successor must not begin with the parameters from before the reset.
        self.kept = ray.get(kept).tobytes()
        self.set_published(version, flats)

    def confirm_restored(self, version: int) -> None:
        """Record the version that a restored learner returned."""
        self.set_published(version, self._flats)


class ReplayHandle(Handle):
    """The driver's handle of a replay.

    `stored` is its last reported number of agent steps; all row numbers are below `numbered`.
    """

    def __init__(self, name: str, place: Any, numbered: int) -> None:
        super().__init__(name, f"replay {name}", place)
        self.stored = 0
        self.numbered = numbered

    def record_inserts(self, inserted: Sequence[Inserted]) -> None:
        """Update the counts from the results of inserts."""
        if inserted:
            self.stored = inserted[-1].stored
            self.numbered += sum([insert.rows for insert in inserted])

    def confirm_restored(self, stored: int, stop: int) -> None:
        """Record the agent steps that the restored replay stores; its row numbers are below `stop`."""
        self.stored, self.numbered = stored, stop

    def clear(self) -> None:
        """Empty the replay, and wait for that."""
        ray.get(self.actor.clear_replay.remote(self.key))
        self.stored = 0

    def reset_empty(self, actor: Any) -> Any:
        """Assign the rows of a restarted replay numbers above all earlier ones."""
        self.stored, self.numbered = 0, (self.numbered // FAR_ABOVE + 1) * FAR_ABOVE
        return actor.begin_at.remote(self.key, self.numbered)


class RestartableHost:
    """An actor that hosts a learner, replays or both; the actor is restarted after a failure.

    `followers` names the other processes of a data-parallel learner, restarted with it. `generation` counts restarts.
    """

    def __init__(
        self,
        name: str,
        actors: Actors,
        builders: Mapping[str, Callable[[], Any]],
        on_fault: Callable[[Fault], None],
        followers: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._names = (name, *followers)
        self._actors = actors
        self._builders = dict(builders)
        self._on_fault = on_fault
        self.processes: list[Any] = []
        self.learner: LearnerHandle | None = None
        self.replay: ReplayHandle | None = None
        self.chains: list[Sequence[StageCall]] = []
        self.generation = 0
        self._restarting: asyncio.Future[None] | None = None
        # One future per follower, done when it stops following the leader.
        self._following: list[Any] = []
        self.actor: Any = None

    def start(self) -> list[Any]:
        """Start the processes; return references that resolve when they are ready."""
        # Followers host the learner only; replays are with the leader.
        learner_only = {name: build for name, build in self._builders.items() if name == self.name}
        self.processes = [
            self._actors.start(
                Host, name, self._builders if name == self.name else learner_only, self._actors.threads(name)
            )
            for name in self._names
        ]
        self.actor = self.processes[0]
        refs = [actor.ready.remote() for actor in self.processes]
        return refs if len(self._names) == 1 else [*refs, self._form_group()]

    def _form_group(self) -> Any:
        size = len(self._names)
        address = self.actor.lead.remote(self.name, size)
        followers = enumerate(self.processes[1:], 1)
        self._following = [actor.follow.remote(self.name, address, rank, size).future() for rank, actor in followers]
        return self.actor.meet.remote(self.name)

    async def answer(self, ref: Any) -> Any:
        """Return the actor's answer; raises RayActorError if the actor or one of its followers was lost."""
        if not self._following:
            return await ref
        # A leader notices a lost follower by its closed connection. Where it does not, it would wait in gloo for the
        # follower until ANSWER_TIMEOUT_S, so the driver checks too.
        answer = asyncio.ensure_future(ref)
        while not (await asyncio.wait([answer], timeout=FOLLOWER_CHECK_S))[0]:
            errors = (future.exception() for future in self._following if future.done())
            if lost := next((error for error in errors if isinstance(error, ray.exceptions.RayActorError)), None):
                answer.cancel()
                raise lost
        return answer.result()

    async def wait_until_ready(self) -> int:
        """Wait for a restart in progress; return the current generation."""
        if self._restarting is not None:
            await asyncio.shield(self._restarting)
        return self.generation

    async def check(self) -> None:
        """Wait until the actor answers, restarting it if it was lost."""
        generation = await self.wait_until_ready()
        try:
            await self.actor.ready.remote()
        except ray.exceptions.RayActorError as error:
            await self.restart(generation, error, 0, 0)

    async def restart(self, generation: int, error: Exception, items: int, rows_lost: int) -> None:
        """Restart the actor unless this generation was replaced already; return when it is ready.

        `items` and `rows_lost` were in flight. Raises ActorLost if the restart fails.
        """
        if generation == self.generation:
            self._report_loss(error, rows_lost)
            self._restarting = asyncio.ensure_future(self._restart_until_ready(items))
        await self.wait_until_ready()

    async def _restart_until_ready(self, items: int) -> None:
        try:
            async with asyncio.timeout(RESTART_TIMEOUT_S):
                answers = await _answers(self._start_again(items))
                while self._was_lost_again(answers):
                    # The actor may have published a version before it was lost.
                    items += 1
                    answers = await _answers(self._start_again(items))
        except TimeoutError:
            raise self._restart_timed_out() from None
        finally:
            self._restarting = None
        self._confirm_restart(answers)

    def restart_blocking(self, error: Exception) -> None:
        """Restart the actor when nothing is in flight."""
        self._report_loss(error, 0)
        until_s = perf_counter() + RESTART_TIMEOUT_S
        try:
            answers = _answers_by(until_s, self._start_again(0))
            while self._was_lost_again(answers):
                answers = _answers_by(until_s, self._start_again(0))
        except TimeoutError:
            raise self._restart_timed_out() from None
        self._confirm_restart(answers)

    def _was_lost_again(self, answers: Sequence[Any]) -> bool:
        error = next((one for one in answers if isinstance(one, ray.exceptions.RayActorError)), None)
        if error is not None and not never_ran(error):
            self._report_loss(error, 0)
        return error is not None

    def _report_loss(self, error: Exception, rows_lost: int) -> None:
        self.generation += 1
        reason = cause(error)
        if self.learner is not None:
            # A learner with a replay loses no rows: the replay still has them.
            learner_rows = 0 if self.learner.has_replay else rows_lost
            self._on_fault(Fault(FaultKind.LEARNERS_LOST, self.learner.key, reason, "", learner_rows))
        if self.replay is not None:
            lost = self.replay.stored + rows_lost
            self._on_fault(Fault(FaultKind.REPLAYS_LOST, self.replay.key, reason, "", lost, self.replay.name))

    def _start_again(self, items: int) -> list[Any]:
        # Surviving followers too: they cannot join a new group.
        for actor in self.processes:
            self._actors.kill(actor)
        refs = self.start()
        refs += [self.actor.prepare.remote(number, list(chain)) for number, chain in enumerate(self.chains)]
        for handle in (self.learner, self.replay):
            if handle is not None and handle.scheduled:
                refs.append(self.actor.set_schedule.remote(handle.key, handle.scheduled))
        if self.replay is not None:
            refs.append(self.replay.reset_empty(self.actor))
        return refs if self.learner is None else [*refs, self.learner.resume(self.actor, items)]

    def _confirm_restart(self, answers: Sequence[Any]) -> None:
        # In the order of the calls, so that the first error is the cause of the others.
        for answer in answers:
            if isinstance(answer, BaseException):
                raise ActorLost(f"{self.name} died, and its successor too: {answer}") from answer
            if isinstance(answer, RemoteError):
                cause = as_exception(answer)
                raise ActorLost(f"{self.name} died, and its successor could not begin: {answer.text}") from cause
        if self.learner is not None:
            self.learner.confirm_restored(answers[-1])

    def _restart_timed_out(self) -> ActorLost:
        lacks = "; ".join(map(self._actors.describe_shortage, self._names))
        return ActorLost(f"{self.name} died, and no successor was there within {RESTART_TIMEOUT_S:g} s: {lacks}")


def call_restarting(handle: AnyHandle, call: Callable[[AnyHandle], None]) -> None:
    """Make a blocking call when nothing is in flight, once more if the actor was lost; raises ActorLost."""
    try:
        try:
            call(handle)
        # ActorLost: a follower of the learner was lost, and the whole group is restarted.
        except (ray.exceptions.RayActorError, ActorLost) as error:
            handle.place.host.restart_blocking(error)
            call(handle)
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
        raise ActorLost(f"{handle.key}, or weights that it was to begin with, were lost: {cause(error)}") from error


async def _answers(refs: Sequence[Any]) -> list[Any]:
    """Return the answers, or errors, in order; if an actor was lost, its error alone, as the others may wait for it."""
    answers = [asyncio.ensure_future(_answer_of(ref)) for ref in refs]
    try:
        for answer in asyncio.as_completed(answers):
            if isinstance(error := await answer, ray.exceptions.RayActorError):
                return [error]
        return [answer.result() for answer in answers]
    finally:
        for unanswered in answers:
            unanswered.cancel()


def _answers_by(until_s: float, refs: Sequence[Any]) -> list[Any]:
    """Return what `_answers` does, without an event loop; raises TimeoutError at `until_s` (time.perf_counter)."""
    waiting = list(refs)
    while waiting:
        done, waiting = ray.wait(waiting, timeout=max(0.0, until_s - perf_counter()))
        if not done:
            raise TimeoutError
        if lost := [one for one in map(_answer, done) if isinstance(one, ray.exceptions.RayActorError)]:
            return lost[:1]
    return [_answer(ref) for ref in refs]


async def _answer_of(ref: Any) -> Any:
    try:
        return await ref
    except Exception as error:  # noqa: BLE001  told apart where all are there
        return error


def _answer(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return error
