"""Stages that collect experience and split it by policy.

The driver never opens rows: it passes on `Packed` references to them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from marlflow.base.awaiting import begun
from marlflow.base.errors import PlanInvalid
from marlflow.batches.batch import Batch
from marlflow.batches.items import Fragment, JointFragment, Packed
from marlflow.batches.joint import JointBatches
from marlflow.flow import Traits
from marlflow.sampling.protocol import Drain, Request, Round, Workers


@dataclass(frozen=True, slots=True)
class Collect:
    """A source of rounds; `next_request` returns the next input, or None at the end."""

    workers: Workers = field(repr=False)
    next_request: Callable[[], Request | Drain | None] = field(repr=False)
    compiled: bool = False
    """Whether drawings say that fragments are compiled calls."""

    @property
    def under_way(self) -> int:
        """The number of calls that workers run: rounds of single workers, and others, such as matches."""
        return self.workers.under_way

    def __call__(self) -> Round | Awaitable[Round]:
        request = self.next_request()
        if isinstance(request, Request):
            return begun(self.collected(request))
        # Results of running workers are not lost at the end.
        if not self.under_way:
            raise StopIteration
        return begun(self.workers.collect_next(None))

    def collected(self, request: Request) -> Coroutine[Any, Any, Round]:
        """Begin a round of all workers."""
        return self.workers.collect(request)


class CollectNext(Collect):
    """An asynchronous source: a round of the next worker that finishes.

    `next_request` returns the input for workers that have finished. Drain starts no worker until all have finished;
    then None ends the source.
    """

    __slots__ = ()

    def collected(self, request: Request) -> Coroutine[Any, Any, Round]:
        """Begin a round of the next worker that finishes."""
        return self.workers.collect_next(request)


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """Splits a round into fragments, for the plans of the policies' learners.

    `joint` names learners of several policies: with `ByPolicy(joint={"mixer": ("left", "right")})` the plan "mixer"
    gets a fragment per worker, with the payloads of both. `learners` maps other policies to learners; the default is a
    learner of the same name. `union` names learners of the rows of other policies: with `ByPolicy(union={"average":
    ("response",)})` the plan "average" gets the rows of "response", and no rows of "average".
    """

    joint: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learners: Mapping[str, str] = field(default_factory=dict)
    union: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def traits(self) -> Traits:
        """The traits, with the joint streams."""
        return Traits(routes=dict.fromkeys(self.joint, JointFragment))

    def __call__(self, round: Round) -> Iterator[tuple[str, Fragment]]:
        """Yield fragments with their learner's name; joint fragments, of several policies, come last.

        Raises PlanInvalid if a joint stream has the name of a policy that is not in it, or a stream has a policy
        without rows.
        """
        joined = {policy for policies in self.joint.values() for policy in policies}
        for fragment in round.fragments:
            learner = self.learners.get(fragment.policy, fragment.policy)
            if fragment.policy not in joined and learner not in self.union:
                yield learner, fragment
        for name, policies in self.union.items():
            for parts in _by_worker(f"the stream {name!r} has rows of", policies, round.fragments):
                yield name, _united(name, parts)
        for name, policies in self.joint.items():
            for fragment in _joined(name, policies, round.fragments):
                yield name, fragment


def _by_worker(stream: str, policies: Sequence[str], fragments: Sequence[Fragment]) -> Iterator[list[Fragment]]:
    """Yield the fragments of `policies` from each worker."""
    workers: dict[int, dict[str, Fragment]] = {}
    for fragment in fragments:
        workers.setdefault(fragment.worker, {})[fragment.policy] = fragment
    for by_policy in workers.values():
        if missing := [policy for policy in policies if policy not in by_policy]:
            raise PlanInvalid([f"{stream} {missing}, but rows come only from {sorted(by_policy)}"])
        yield [by_policy[policy] for policy in policies]


def _united(name: str, parts: Sequence[Fragment]) -> Fragment:
    # An empty batch may lack columns; one part remains, so that every worker has a fragment in every round.
    kept = [part for part in parts if part.rows] or parts[:1]
    return Fragment(
        policy=name,
        worker=parts[0].worker,
        round=parts[0].round,
        closes_round=parts[0].closes_round,
        rows=sum(part.rows for part in kept),
        rows_carried=sum(part.rows_carried for part in kept),
        payloads=tuple(payload for part in kept for payload in part.payloads),
    )


def _joined(name: str, policies: Sequence[str], fragments: Sequence[Fragment]) -> Iterator[JointFragment]:
    if name not in policies and any(fragment.policy == name for fragment in fragments):
        raise PlanInvalid([f"the joint stream {name!r} has the name of a policy that is not in it: rename it"])
    for parts in _by_worker(f"the joint stream {name!r} joins", policies, fragments):
        yield JointFragment(
            policy=name,
            worker=parts[0].worker,
            round=parts[0].round,
            closes_round=parts[0].closes_round,
            rows=sum(part.rows for part in parts),
            rows_carried=sum(part.rows_carried for part in parts),
            payloads=tuple(payload for part in parts for payload in part.payloads),
            # Each payload keeps its policy's name, by which it is opened.
            keys=tuple(part.policy for part in parts for _ in part.payloads),
        )


def _opened_as(taken: Any) -> type:
    return JointBatches if taken is JointFragment else Batch


@dataclass(slots=True)
class Concat:
    """Concatenates all rows at the end of the first round with at least `agent_steps`.

    No row is discarded; all rows of a round have one version.
    """

    agent_steps: int
    held: list[Fragment] = field(default_factory=list, repr=False)
    # The number of fragments held after the last call, and their rows: a round may have thousands of fragments.
    _counted: tuple[int, int] = field(default=(0, 0), repr=False, compare=False)

    @property
    def traits(self) -> Traits:
        """The traits, with the fewest agent steps."""
        # Batches of a joint stream are opened by policy.
        return Traits(emits=_opened_as, at_most_one=True, keeps_segments=True, agent_steps=self.agent_steps)

    def add(self, fragment: Fragment) -> Sequence[Batch]:
        """Add a fragment; return the batch, packed, if complete."""
        count, rows = self._counted
        # A resume or a reset has changed the held items.
        if count != len(self.held):
            rows = sum(held.rows for held in self.held)
        if fragment.rows:
            self.held.append(fragment)
            rows += fragment.rows
        self._counted = len(self.held), rows
        # At least one row: rounds without rows make no batch.
        return self.rest() if fragment.closes_round and rows >= max(1, self.agent_steps) else []

    def rest(self) -> Sequence[Batch]:
        """Return the remaining rows as a batch, if any."""
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
    """Like Concat, but keyed by worker, for learners with a replica on every worker: rows stay in their process."""

    def add(self, fragment: Fragment) -> Sequence[Batch]:
        worker = str(fragment.worker)
        # Not super(): slots=True recreates the class, which breaks the zero-argument form.
        return Concat.add(self, replace(fragment, keys=(worker,) * len(fragment.payloads)))
