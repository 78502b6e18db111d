"""The stages that make experience and divide it: they run on the driver and see receipts, never rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from marlflow.base.awaiting import begun
from marlflow.base.batch import Batch
from marlflow.base.errors import PlanInvalid
from marlflow.base.items import Fragment, JointFragment, Packed
from marlflow.base.joint import JointBatches
from marlflow.flow import Traits
from marlflow.rollout.protocol import Request, Round, Workers


@dataclass(frozen=True, slots=True)
class Collect:
    """A source of rounds. `next_request` says what to collect with, or None to end."""

    workers: Workers = field(repr=False)
    next_request: Callable[[], Request | Literal["home"] | None] = field(repr=False)

    def __call__(self) -> Round | Awaitable[Round]:
        """The next round."""
        request = self.next_request()
        if not isinstance(request, Request):
            raise StopIteration
        return begun(self.workers.collect(request))


@dataclass(frozen=True, slots=True)
class CollectNext:
    """A source of rounds of one worker each, whichever is done next, while the others go on.

    `next_request` says what those begin with that are done; "home": nobody is to begin anything, until all are home;
    None ends the flow, when they are.
    """

    workers: Workers = field(repr=False)
    next_request: Callable[[], Request | Literal["home"] | None] = field(repr=False)

    @property
    def under_way(self) -> int:
        """How many workers have begun what is still to come."""
        return self.workers.under_way

    def __call__(self) -> Round | Awaitable[Round]:
        """The next round."""
        request = self.next_request()
        if isinstance(request, Request):
            return begun(self.workers.collect_next(request))
        if not self.under_way:
            raise StopIteration
        return begun(self.workers.collect_next(None))


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """Divides a round among the plans of its learners: each policy's fragments go to the learner that trains it.

    `joint` has the learners that train their policies together: with `ByPolicy(joint={"mixer": ("left", "right")})` the
    plan "mixer" gets one fragment per worker, with the payloads of both. `learners` has the learner of each other
    policy; one that is not there has a learner of its own name.
    """

    joint: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learners: Mapping[str, str] = field(default_factory=dict)

    @property
    def traits(self) -> Traits:
        """The items of a joint stream have a type of their own."""
        return Traits(routes=dict.fromkeys(self.joint, JointFragment))

    def __call__(self, round: Round) -> Iterator[tuple[str, Fragment]]:
        """Each fragment under the name of its policy's learner, those of the joint streams last.

        Raises PlanInvalid where a joint stream has the name of a policy that is not in it, or joins one that leaves no
        rows.
        """
        joined = {policy for policies in self.joint.values() for policy in policies}
        for fragment in round.fragments:
            if fragment.policy not in joined:
                yield self.learners.get(fragment.policy, fragment.policy), fragment
        for name, policies in self.joint.items():
            for fragment in _joined(name, policies, round.fragments):
                yield name, fragment


def _joined(name: str, policies: Sequence[str], fragments: Sequence[Fragment]) -> Iterator[JointFragment]:
    """For each worker one fragment of all `policies`, in their order, under `name`."""
    workers: dict[int, dict[str, Fragment]] = {}
    for fragment in fragments:
        workers.setdefault(fragment.worker, {})[fragment.policy] = fragment
    for worker, made in workers.items():
        if name in made and name not in policies:
            raise PlanInvalid([f"the joint stream {name!r} has the name of a policy that is not in it: rename it"])
        if missing := [policy for policy in policies if policy not in made]:
            raise PlanInvalid([f"the joint stream {name!r} joins {missing}, but rows come only from {sorted(made)}"])
        parts = [made[policy] for policy in policies]
        yield JointFragment(
            policy=name,
            worker=worker,
            round=parts[0].round,
            closes_round=parts[0].closes_round,
            rows=sum(part.rows for part in parts),
            rows_carried=sum(part.rows_carried for part in parts),
            payloads=tuple(payload for part in parts for payload in part.payloads),
            keys=tuple(part.policy for part in parts for _ in part.payloads),
        )


def _opened_as(taken: Any) -> type:
    """The type of what gathered items of this type are opened as."""
    return JointBatches if taken is JointFragment else Batch


@dataclass(slots=True)
class Concat:
    """Gathers fragments; at the end of the first round in which it holds `agent_steps` rows, emits all it holds.

    So no row is thrown away, and every row of a batch is of the same version as its round's others.
    """

    agent_steps: int
    held: list[Fragment] = field(default_factory=list, repr=False)

    @property
    def traits(self) -> Traits:
        """Emits nothing before it has `agent_steps`; of a joint stream, a batch of each policy."""
        return Traits(emits=_opened_as, at_most_one=True, keeps_segments=True, agent_steps=self.agent_steps)

    def add(self, fragment: Fragment) -> Sequence[Batch]:
        """Keeps the fragment; the batch, if it is complete: packed, until a place opens it for the next stage."""
        if fragment.rows:
            self.held.append(fragment)
        rows = sum(held.rows for held in self.held)
        return self.rest() if fragment.closes_round and rows >= max(1, self.agent_steps) else []

    def rest(self) -> Sequence[Batch]:
        """All it holds, as a batch, if it holds any."""
        if not self.held:
            return []
        rows = sum(held.rows for held in self.held)
        payloads = tuple(payload for held in self.held for payload in held.payloads)
        keys = tuple(key for held in self.held for key in held.keys)
        self.held.clear()
        return [cast("Batch", Packed(rows, payloads, keys))]


@dataclass(slots=True)
class Shards(Concat):
    """As Concat, but each worker's rows stay its own: what it emits says whose each payload is.

    It is the gather of a plan whose learner has a replica on every rollout worker: no row leaves the worker that made
    it.
    """

    def add(self, fragment: Fragment) -> Sequence[Batch]:
        """Keeps the fragment; the batch, if it is complete: a shard for each worker, for all replicas at once."""
        worker = str(fragment.worker)
        # Not super(): a class with slots is made twice, and the first knows nothing of the second.
        return Concat.add(self, replace(fragment, keys=(worker,) * len(fragment.payloads)))
