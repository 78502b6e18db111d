"""What lives and dies together: an actor with all that it hosts, and those that follow its learner.

When it is lost it is started again, once: a learner as it was kept last, under a version above all that were handed
out; a replay empty, its rows numbered far above all that were. What was under way there is lost, and never repeated.
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
    """What the driver holds of a learner or replay; inside a stage it becomes the object where the stage arrives."""

    def __init__(self, name: str, key: str, place: Any) -> None:
        self.name, self.key, self.place = name, key, place
        self.scheduled: Mapping[str, float] = {}
        self._told: Any = None

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return resident, (self.key,)

    @property
    def actor(self) -> Any:
        """Where it lives now."""
        return self.place.hosted.actor

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes effect on whatever is asked of it from here on; waits for nothing.

        What went wrong with an earlier call is raised.
        """
        if self._told is not None and ray.wait([self._told], timeout=0)[0]:
            with suppress(ray.exceptions.RayActorError):  # its successor is told what is scheduled
                if isinstance(answer := ray.get(self._told), Raised):
                    raise as_exception(answer)
        self.scheduled = values
        self._told = self.actor.set_schedule.remote(self.key, values)


class LearnerHandle(Handle):
    """A learner. `kept` are its bytes when it was last kept; rows are dropped as stale beyond `max_staleness`.

    `remembers`: it learns from copies of rows, which a replay has.
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
        """The version of what was last published."""
        return next(iter(self.published.values())).version

    def hand_out(self, version: int, flats: Sequence[Any]) -> None:
        """This was published; `flats` has a reference to the parameters of each policy, which nobody opens here."""
        self.published = {p: Weights(version, flat) for p, flat in zip(self.policies, flats, strict=True)}

    def ask_first_weights(self) -> None:
        """Asks for what a learner acts by that has just been made."""
        made = self.actor.weights.options(num_returns=len(self.policies)).remote(self.key)
        self.hand_out(0, made if len(self.policies) > 1 else [made])

    @property
    def _answers(self) -> int:
        """The number of answers of a learner that takes up a state: its version, and the weights of each policy."""
        return 1 + len(self.policies)

    def taken_up(self, actor: Any, items: int) -> Any:
        """Asks the successor to go on, and for its version; `items` were under way, each perhaps published."""
        above = self.version + items + self.max_staleness
        version, *self._flats = actor.take_up.options(num_returns=self._answers).remote(self.key, self.kept, above)
        return version

    def restored(self, kept: bytes) -> Any:
        """Asks the learner to go on from what was kept, and for its version."""
        self.kept = kept
        version, *self._flats = self.actor.load_learner.options(num_returns=self._answers).remote(self.key, kept)
        return version

    def goes_on(self, version: int) -> None:
        """It answered: this is the version of what it has published."""
        self.hand_out(version, self._flats)


class ReplayHandle(Handle):
    """A replay. `stored` is how many rows it said to hold last; all its rows have numbers below `numbered`."""

    def __init__(self, name: str, place: Any, numbered: int) -> None:
        super().__init__(name, f"replay {name}", place)
        self.stored = 0
        self.numbered = numbered

    def now_holds(self, inserted: Sequence[Inserted]) -> None:
        """What the replay says of inserts."""
        if inserted:
            self.stored = inserted[-1].stored
            self.numbered += sum([one.rows for one in inserted])

    def goes_on(self, first: int, stop: int) -> None:
        """It was restored, and holds these rows."""
        self.stored, self.numbered = stop - first, stop

    def begun_again(self, actor: Any) -> Any:
        """Asks the successor, which is empty, to number its rows far above all others."""
        self.stored, self.numbered = 0, (self.numbered // FAR_ABOVE + 1) * FAR_ABOVE
        return actor.begin_at.remote(self.key, self.numbered)


class Hosted:
    """The actor called `name`, and its successors; `builders` make what it hosts.

    `followers` are the processes that learn with the learner of that name: they live and die with it. `incarnation`
    counts its lives.
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
        """Starts its processes; what has to be waited for."""
        own = {name: self._builders if name == self.name else self._learner_only for name in self._names}
        self.running = [self._actors.start(Host, n, built, self._actors.threads(n)) for n, built in own.items()]
        self.actor = self.running[0]
        awaited = [actor.ready.remote() for actor in self.running]
        return awaited if len(self._names) == 1 else [*awaited, self._gathered()]

    def _gathered(self) -> Any:
        """Makes the learners a group; what the leader says when all are there."""
        size = len(self._names)
        address = self.actor.lead.remote(self.name, size)
        for rank, actor in enumerate(self.running[1:], 1):
            actor.follow.remote(self.name, address, rank, size)
        return self.actor.meet.remote(self.name)

    @property
    def _learner_only(self) -> dict[str, Callable[[], Any]]:
        return {self.name: self._builders[self.name]}

    async def present(self) -> int:
        """Waits for a successor if one is on its way; the incarnation that is there now."""
        if self._coming is not None:
            await asyncio.shield(self._coming)
        return self.incarnation

    async def look(self) -> None:
        """Returns once it is there, which it may not be any more: then it is revived."""
        incarnation = await self.present()
        try:
            await self.actor.ready.remote()
        except ray.exceptions.RayActorError as error:
            await self.revive(incarnation, error, 0, 0)

    async def revive(self, incarnation: int, error: Exception, items: int, rows_lost: int) -> None:
        """Returns when the successor of this incarnation is there. `items` and `rows_lost` were under way.

        Raises ActorLost if it does not come back.
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
        """The same for when nothing is under way; blocks."""
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
        """Starts its successor; what has to be waited for, in the order of `_is_back`."""
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
