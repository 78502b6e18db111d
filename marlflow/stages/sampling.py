"""Stages that collect experience and split it by policy; they run on the driver and see receipts, never rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from marlflow.base.awaiting import begun
from marlflow.base.batch import Batch
from marlflow.base.errors import PlanInvalid
from marlflow.base.items import Fragment, JointFragment, Packed
from marlflow.base.joint import JointBatches
from marlflow.flow import Traits
from marlflow.sampling.protocol import Drain, Request, Round, Workers


@dataclass(frozen=True, slots=True)
class Collect:
    """A source of rounds. `next_request` returns what to collect with, or None to end."""

    workers: Workers = field(repr=False)
    next_request: Callable[[], Request | Drain | None] = field(repr=False)

    def __call__(self) -> Round | Awaitable[Round]:
        request = self.next_request()
        if not isinstance(request, Request):
            raise StopIteration
        return begun(self.workers.collect(request))


@dataclass(frozen=True, slots=True)
class CollectNext:
    """An asynchronous source: each round is that of one worker, whichever finishes next.

    `next_request` returns what finished workers start with. Drain and None start none and end the source once all have
    finished.
    """

    workers: Workers = field(repr=False)
    next_request: Callable[[], Request | Drain | None] = field(repr=False)

    @property
    def under_way(self) -> int:
        """Number of workers whose result is still to come."""
        return self.workers.under_way

    def __call__(self) -> Round | Awaitable[Round]:
        request = self.next_request()
        if isinstance(request, Request):
            return begun(self.workers.collect_next(request))
        if not self.under_way:
            raise StopIteration
        return begun(self.workers.collect_next(None))


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """Splits a round into fragments by learner: each policy's fragments go to the plan of the learner that trains it.

    `joint` names learners that train several policies together: with `ByPolicy(joint={"mixer": ("left", "right")})` the
    plan "mixer" gets one fragment per worker, with the payloads of both. `learners` has the learner of each other
    policy; the default is a learner of the policy's own name.
    """

    joint: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learners: Mapping[str, str] = field(default_factory=dict)

    @property
    def traits(self) -> Traits:
        """The traits; items of a joint stream have their own type."""
        return Traits(routes=dict.fromkeys(self.joint, JointFragment))

    def __call__(self, round: Round) -> Iterator[tuple[str, Fragment]]:
        """Yield each fragment under its policy's learner, and then the joint streams' fragments under theirs.

        Raises PlanInvalid if a joint stream has the name of a policy that is not in it, or joins a policy without rows.
        """
        joined = {policy for policies in self.joint.values() for policy in policies}
        for fragment in round.fragments:
            if fragment.policy not in joined:
                yield self.learners.get(fragment.policy, fragment.policy), fragment
        for name, policies in self.joint.items():
            for fragment in _joined(name, policies, round.fragments):
                yield name, fragment


def _joined(name: str, policies: Sequence[str], fragments: Sequence[Fragment]) -> Iterator[JointFragment]:
    workers: dict[int, dict[str, Fragment]] = {}
    for fragment in fragments:
        workers.setdefault(fragment.worker, {})[fragment.policy] = fragment
    for worker, by_policy in workers.items():
        if name in by_policy and name not in policies:
            raise PlanInvalid([f"the joint stream {name!r} has the name of a policy that is not in it: rename it"])
        if missing := [policy for policy in policies if policy not in by_policy]:
            raise PlanInvalid(
                [f"the joint stream {name!r} joins {missing}, but rows come only from {sorted(by_policy)}"]
            )
        parts = [by_policy[policy] for policy in policies]
        yield JointFragment(
            policy=name,
            worker=worker,
            round=parts[0].round,
            closes_round=parts[0].closes_round,
            rows=sum(part.rows for part in parts),
            rows_carried=sum(part.rows_carried for part in parts),
            payloads=tuple(payload for part in parts for payload in part.payloads),
            # Each payload keeps its policy's name, by which it is opened.
            keys=tuple(part.policy for part in parts for _ in part.payloads),
        )


def _opened_as(taken: Any) -> type:
    """Return the type of batch that gathered items of the type `taken` are opened as."""
    return JointBatches if taken is JointFragment else Batch


@dataclass(slots=True)
class Concat:
    """Accumulates fragments; emits all rows at the end of the first round with at least `agent_steps` of them.

    No row is discarded, and all rows of a round share one version.
    """

    agent_steps: int
    held: list[Fragment] = field(default_factory=list, repr=False)

    @property
    def traits(self) -> Traits:
        """The traits, with the fewest agent steps emitted; a joint stream's batches are opened per policy."""
        return Traits(emits=_opened_as, at_most_one=True, keeps_segments=True, agent_steps=self.agent_steps)

    def add(self, fragment: Fragment) -> Sequence[Batch]:
        """Add a fragment; return the batch if complete, packed until a place opens it."""
        if fragment.rows:
            self.held.append(fragment)
        rows = sum(held.rows for held in self.held)
        # At least one row: rounds without rows make no batch.
        return self.rest() if fragment.closes_round and rows >= max(1, self.agent_steps) else []

    def rest(self) -> Sequence[Batch]:
        """Return everything it holds as one batch, if anything."""
        if not self.held:
            return []
        rows = sum(held.rows for held in self.held)
        payloads = tuple(payload for held in self.held for payload in held.payloads)
        keys = tuple(key for held in self.held for key in held.keys)
        self.held.clear()
        # Typed as the batch that it contains: payloads are opened only at the next stage's place.
        return [cast("Batch", Packed(rows, payloads, keys))]


@dataclass(slots=True)
class Shards(Concat):
    """Like Concat, but keyed by worker, so that each worker's rows stay in its process.

    For plans whose learner has a replica on every rollout worker.
    """

    def add(self, fragment: Fragment) -> Sequence[Batch]:
        worker = str(fragment.worker)
        # Not super(): slots=True recreates the class, which breaks the zero-argument form.
        return Concat.add(self, replace(fragment, keys=(worker,) * len(fragment.payloads)))
