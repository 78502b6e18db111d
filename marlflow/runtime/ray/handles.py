"""Driver-side handles of learners and replays, and restart of the actors that host them after a failure.

An actor fails together with everything it hosts and with the followers of its learner. After a restart, the learner has
its last checkpointed state and a version above all published ones; a replay is empty and numbers its rows far above all
earlier ones. Work in flight is lost, never repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray

from marlflow.base.errors import ActorLost
from marlflow.base.fault_kind import FaultKind
from marlflow.base.items import Inserted, Weights
from marlflow.flow import StageCall
from marlflow.runtime.ray.actors import REPLACING_TIMEOUT_S, Actors, cause, never_ran
from marlflow.runtime.ray.host import Host, Raised, as_exception, resident
from marlflow.runtime.spec import LearnerSpec
from marlflow.sampling.receipts import Fault

FAR_ABOVE = 2**40
"""Rows of a replay that comes back are numbered from a multiple of this: more than a replay is ever given."""


class Handle:
    """The driver's handle of a learner or replay; unpickled in the hosting actor, it becomes the object itself."""

    def __init__(self, name: str, key: str, place: Any) -> None:
        self.name, self.key, self.place = name, key, place
        self.scheduled: Mapping[str, float] = {}
        self._told: Any = None

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return resident, (self.key,)

    @property
    def actor(self) -> Any:
        """The current hosting actor; a new one after each restart."""
        return self.place.hosted.actor

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set scheduled values for all later calls without waiting.

        Raises what an earlier call raised.
        """
        if self._told is not None and ray.wait([self._told], timeout=0)[0]:
            with suppress(ray.exceptions.RayActorError):  # its successor is told what is scheduled
                if isinstance(answer := ray.get(self._told), Raised):
                    raise as_exception(answer)
        self.scheduled = values
        self._told = self.actor.set_schedule.remote(self.key, values)


class LearnerHandle(Handle):
    """The driver's handle of a learner.

    `kept` is its last checkpointed state, serialized. Rows staler than `max_staleness` versions are dropped.
    `remembers`: it learns from a replay, which has copies of its rows.
    """

    def __init__(self, spec: LearnerSpec, place: Any) -> None:
        super().__init__(spec.name, f"learner {spec.name}", place)
        algorithm, self.policies = spec.algorithm, spec.members
        capabilities = algorithm.capabilities
        self.trains_on, self.remembers = capabilities.trains_on, capabilities.replay
        self.max_staleness = int(getattr(algorithm, "max_staleness", 0) or 0)
        self.published = {policy: Weights(-1, None) for policy in self.policies}
        self.kept: bytes | None = None
        self._flats: Sequence[Any] = ()

    @property
    def version(self) -> int:
        """The last published version."""
        return next(iter(self.published.values())).version

    def hand_out(self, version: int, flats: Sequence[Any]) -> None:
        """Record a published version; `flats` has one object reference per policy to its parameters."""
        self.published = {p: Weights(version, flat) for p, flat in zip(self.policies, flats, strict=True)}

    def ask_first_weights(self) -> None:
        """Request the initial weights from a newly built learner."""
        made = self.actor.weights.options(num_returns=len(self.policies)).remote(self.key)
        self.hand_out(0, made if len(self.policies) > 1 else [made])

    @property
    def _answers(self) -> int:
        return 1 + len(self.policies)

    def taken_up(self, actor: Any, items: int) -> Any:
        """Load the last checkpointed state into a restarted learner; return a reference to its version."""
        above = self.version + items + self.max_staleness
        version, *self._flats = actor.take_up.options(num_returns=self._answers).remote(self.key, self.kept, above)
        return version

    def restored(self, kept: bytes) -> Any:
        """Load a checkpointed state; return a reference to the learner's version."""
        self.kept = kept
        version, *self._flats = self.actor.load_learner.options(num_returns=self._answers).remote(self.key, kept)
        return version

    def goes_on(self, version: int) -> None:
        """Record the version that a restored or restarted learner returned."""
        self.hand_out(version, self._flats)


class ReplayHandle(Handle):
    """The driver's handle of a replay.

    `stored` is its last reported number of rows; all row numbers are below `numbered`.
    """

    def __init__(self, name: str, place: Any, numbered: int) -> None:
        super().__init__(name, f"replay {name}", place)
        self.stored = 0
        self.numbered = numbered

    def now_holds(self, inserted: Sequence[Inserted]) -> None:
        """Update the counts of rows from the results of inserts."""
        if inserted:
            self.stored = inserted[-1].stored
            self.numbered += sum([one.rows for one in inserted])

    def goes_on(self, first: int, stop: int) -> None:
        """Record the restored replay's row numbers [first, stop)."""
        self.stored, self.numbered = stop - first, stop

    def begun_again(self, actor: Any) -> Any:
        """Make the restarted, empty replay number its rows above all earlier ones."""
        self.stored, self.numbered = 0, (self.numbered // FAR_ABOVE + 1) * FAR_ABOVE
        return actor.begin_at.remote(self.key, self.numbered)


class Hosted:
    """An actor that hosts a learner, replays or both, restarted after a failure.

    `builders` build what it hosts. `followers` names the other processes of a data-parallel learner: they are killed
    and restarted together with it. `incarnation` counts the restarts.
    """

    def __init__(
        self,
        name: str,
        actors: Actors,
        builders: Mapping[str, Callable[[], Any]],
        on_fault: Callable[[Fault], None],
        followers: Sequence[str] = (),
    ) -> None:
        self._names, self.running = (name, *followers), list[Any]()
        self.name, self._actors, self._builders, self._on_fault = name, actors, dict(builders), on_fault
        self.learner: LearnerHandle | None = None
        self.replay: ReplayHandle | None = None
        self.chains: list[Sequence[StageCall]] = []
        self.incarnation = 0
        self._coming: asyncio.Future[None] | None = None
        self.actor: Any = None

    def start(self) -> list[Any]:
        """Start the processes; return references that resolve when they are ready."""
        own = {name: self._builders if name == self.name else self._learner_only for name in self._names}
        self.running = [self._actors.start(Host, n, built, self._actors.threads(n)) for n, built in own.items()]
        self.actor = self.running[0]
        awaited = [actor.ready.remote() for actor in self.running]
        return awaited if len(self._names) == 1 else [*awaited, self._gathered()]

    def _gathered(self) -> Any:
        size = len(self._names)
        address = self.actor.lead.remote(self.name, size)
        for rank, actor in enumerate(self.running[1:], 1):
            actor.follow.remote(self.name, address, rank, size)
        return self.actor.meet.remote(self.name)

    @property
    def _learner_only(self) -> dict[str, Callable[[], Any]]:
        return {self.name: self._builders[self.name]}

    async def present(self) -> int:
        """Wait for a restart in progress, if any; return the current generation."""
        if self._coming is not None:
            await asyncio.shield(self._coming)
        return self.incarnation

    async def look(self) -> None:
        """Wait until the actor answers, restarting it if it has died."""
        incarnation = await self.present()
        try:
            await self.actor.ready.remote()
        except ray.exceptions.RayActorError as error:
            await self.revive(incarnation, error, 0, 0)

    async def revive(self, incarnation: int, error: Exception, items: int, rows_lost: int) -> None:
        """Restart the actor unless that generation was already replaced; return when it is ready.

        `items` and `rows_lost` were in flight. Raises ActorLost if the restart fails.
        """
        if incarnation == self.incarnation:
            self._say_lost(error, rows_lost)
            self._coming = asyncio.ensure_future(self._arrival(items))
        await self.present()

    async def _arrival(self, items: int) -> None:
        try:
            async with asyncio.timeout(REPLACING_TIMEOUT_S):
                found = await asyncio.gather(*self._begin_again(items), return_exceptions=True)
                while died := next((one for one in found if isinstance(one, ray.exceptions.RayActorError)), None):
                    if not never_ran(died):
                        self._say_lost(died, 0)
                        items += 1  # it may have published
                    found = await asyncio.gather(*self._begin_again(items), return_exceptions=True)
        except TimeoutError:
            raise self._nowhere() from None
        finally:
            self._coming = None
        self._is_back(found)

    def revive_now(self, error: Exception) -> None:
        """Restart the actor when nothing is in flight; blocks."""
        self._say_lost(error, 0)
        refs = self._begin_again(0)
        if ray.wait(refs, num_returns=len(refs), timeout=REPLACING_TIMEOUT_S)[1]:
            raise self._nowhere()
        self._is_back([_answer(ref) for ref in refs])

    def _say_lost(self, error: Exception, rows_lost: int) -> None:
        self.incarnation += 1
        reason = cause(error)
        if self.learner is not None:
            self._on_fault(
                Fault(FaultKind.LEARNERS_LOST, self.learner.key, reason, "", 0 if self.learner.remembers else rows_lost)
            )
        if self.replay is not None:
            lost = self.replay.stored + rows_lost
            self._on_fault(Fault(FaultKind.REPLAYS_LOST, self.replay.key, reason, "", lost, self.replay.name))

    def _begin_again(self, items: int) -> list[Any]:
        """Kill and start the processes; return references in the order that `_is_back` expects."""
        for actor in self.running:
            self._actors.end(actor)
        refs = self.start()
        refs += [self.actor.prepare.remote(number, list(chain)) for number, chain in enumerate(self.chains)]
        for handle in (self.learner, self.replay):
            if handle is not None and handle.scheduled:
                refs.append(self.actor.set_schedule.remote(handle.key, handle.scheduled))
        if self.replay is not None:
            refs.append(self.replay.begun_again(self.actor))
        return refs if self.learner is None else [*refs, self.learner.taken_up(self.actor, items)]

    def _is_back(self, found: Sequence[Any]) -> None:
        for answer in found:  # what went wrong first stands first
            if isinstance(answer, BaseException):
                raise ActorLost(f"{self.name} died, and its successor too: {answer}") from answer
            if isinstance(answer, Raised):
                cause = as_exception(answer)
                raise ActorLost(f"{self.name} died, and its successor could not begin: {answer.text}") from cause
        if self.learner is not None:
            self.learner.goes_on(found[-1])

    def _nowhere(self) -> ActorLost:
        lacks = "; ".join(map(self._actors.lack, self._names))
        return ActorLost(f"{self.name} died, and no successor was there within {REPLACING_TIMEOUT_S:g} s: {lacks}")


def _answer(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return error
