"""The stages that make experience and divide it: they run on the driver and see receipts, never rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from marlflow.base.batch import Batch
from marlflow.base.items import Fragment, Packed
from marlflow.rollout.protocol import Request, Round, Workers


@dataclass(frozen=True, slots=True)
class Collect:
    """A source of rounds. `next_request` says what to collect with, or None to end."""

    workers: Workers = field(repr=False)
    next_request: Callable[[], Request | None] = field(repr=False)

    def __call__(self) -> Round | Awaitable[Round]:
        """The next round."""
        request = self.next_request()
        if request is None:
            raise StopIteration
        return self.workers.collect(request)


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """Divides a round into the fragments of each policy that has a plan."""

    routes: ClassVar[Any] = Fragment

    def __call__(self, round: Round) -> Iterator[tuple[str, Fragment]]:
        """Each fragment under its policy's name."""
        return ((fragment.policy, fragment) for fragment in round.fragments)


@dataclass(slots=True)
class Concat:
    """Gathers fragments; at the end of the first round in which it holds `agent_steps` rows, emits all it holds.

    So no row is thrown away, and every row of a batch is of the same version as its round's others.
    """

    agent_steps: int
    held: list[Fragment] = field(default_factory=list, repr=False)
    accepts: ClassVar[Any] = Fragment
    at_most_one: ClassVar[bool] = True

    def add(self, fragment: Fragment) -> Sequence[Batch]:
        """Keeps the fragment; the batch, if it is complete: packed, until a place opens it for the next stage."""
        if fragment.rows:
            self.held.append(fragment)
        rows = sum(held.rows for held in self.held)
        if not fragment.closes_round or rows < max(1, self.agent_steps):
            return []
        payloads = tuple(payload for held in self.held for payload in held.payloads)
        self.held.clear()
        return [cast("Batch", Packed(rows, payloads))]
