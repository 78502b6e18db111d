"""Flows: typed streams of items, described without running anything.

A flow is a value. `then`, `gather`, `split`, `fork`, `queue` and `merge` return new flows:

    >>> numbers = source(iter([1, 2, 3]).__next__, name="numbers")
    >>> doubled = numbers.then(lambda n: n * 2, name="double")
    >>> [flow.name for flow in doubled.upstream()]
    ['numbers', 'double']
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, Literal, TypeVar, overload

from marlflow.flow.pace import Pace
from marlflow.flow.protocols import GatherOperator, Located, Place, StageCall, describe, name_of, stage_call
from marlflow.flow.traits import NO_TRAITS, Traits, traits_of


@dataclass(slots=True)
class Rotation:
    """Routes items to branches 0 to `branches` - 1 round-robin; the position is saved with the plan.

    >>> deal = Rotation(2)
    >>> [branch for item in "abc" for branch, _ in deal(item)]
    [0, 1, 0]
    """

    branches: int
    next_branch: int = field(default=0, repr=False)

    def __call__(self, item: Any) -> Iterator[tuple[int, Any]]:
        yield self.next_branch, item
        self.next_branch = (self.next_branch + 1) % self.branches


T = TypeVar("T")
U = TypeVar("U")
At = TypeVar("At", bound=Located)
Full = Literal["wait", "drop_oldest"]


class Kind(Enum):
    """How a stage maps input to output items."""

    SOURCE = "source"
    THEN = "then"
    GATHER = "gather"
    SPLIT = "split"
    FORK = "fork"
    BRANCH = "branch"
    QUEUE = "queue"
    MERGE = "merge"


@dataclass(frozen=True, eq=False)
class Flow(Generic[T]):
    """A stage and its output stream; compared by identity."""

    kind: Kind
    name: str
    inputs: tuple[Flow[Any], ...] = ()
    call: StageCall | None = None
    """The operator, and the learner or replay that it runs at; None for forks, branches, queues and merges."""
    capacity: int | None = None
    full: Full = "wait"
    branch: Hashable = None
    branches: tuple[Hashable, ...] = ()
    pace: Pace | None = None
    sides: tuple[str, ...] = ()
    emitted_side: str | None = None
    """For merges: the only side whose items are emitted; None emits the items of all sides."""
    description: str = ""
    added_by: str = ""
    """The part of an algorithm that added the stage, and the point of the plan; empty for the plan's own stages."""
    gives: Any = None
    """Overrides the type of items, when a relocated stage has already converted them upstream."""

    @property
    def operator(self) -> Any:
        """The operator, if any."""
        return None if self.call is None else self.call.operator

    @property
    def at(self) -> Any:
        """The learner or replay that the stage runs at, if any."""
        return None if self.call is None else self.call.at

    @property
    def place(self) -> Place | None:
        """The process where the stage runs; None is the driver."""
        return self.at.place if isinstance(self.at, Located) else None

    @property
    def traits(self) -> Traits:
        """The operator's traits, including item types."""
        return NO_TRAITS if self.call is None else self.call.traits

    @overload
    def then(
        self,
        operator: Callable[[T], U | Awaitable[U]],
        *,
        at: Located | None = None,
        name: str | None = None,
        traits: Traits | None = None,
    ) -> Flow[U]: ...

    @overload
    def then(
        self,
        operator: Callable[[T, At], U | Awaitable[U]],
        *,
        at: At,
        name: str | None = None,
        traits: Traits | None = None,
    ) -> Flow[U]: ...

    def then(
        self, operator: Callable[..., Any], *, at: Any = None, name: str | None = None, traits: Traits | None = None
    ) -> Flow[Any]:
        """Apply `operator` to each item: one output per input.

        The stage runs where `at` lives; operators with two parameters receive `at`. `traits` are for plain functions.
        """
        call = stage_call(operator, at, traits)
        return Flow(Kind.THEN, name or name_of(operator), (self,), call, description=describe(operator))

    def gather(self, operator: GatherOperator[T, U], *, name: str | None = None) -> Flow[U]:
        """Combine items on the driver; the operator decides how many make one output."""
        call = StageCall(operator, None, traits_of(operator, None, "add", None), passes_at=False)
        return Flow(Kind.GATHER, name or name_of(operator), (self,), call, description=describe(operator))

    def split(
        self,
        operator: Callable[[T], Iterable[tuple[Hashable, U]]],
        branches: Sequence[Hashable],
        *,
        name: str | None = None,
    ) -> Mapping[Hashable, Flow[U]]:
        """Route items on the driver to branches named by the operator."""
        call = StageCall(operator, None, traits_of(operator, None, "route", None), passes_at=False)
        name = name or name_of(operator)
        stage: Flow[Any] = Flow(
            Kind.SPLIT, name, (self,), call, branches=tuple(branches), description=describe(operator)
        )
        return {key: Flow(Kind.BRANCH, f"{stage.name}[{key}]", (stage,), branch=key, capacity=1) for key in branches}

    def fork(
        self, copies: int, capacity: int | None = None, full: Full = "wait", name: str = "fork"
    ) -> tuple[Flow[T], ...]:
        """Send every item to each of `copies` branches.

        A full branch, of `capacity` items, blocks the fork (back pressure) or drops its oldest item.
        """
        stage: Flow[T] = Flow(Kind.FORK, name, (self,), branches=tuple(range(copies)), capacity=capacity, full=full)
        return tuple(
            Flow(Kind.BRANCH, f"{name}[{i}]", (stage,), branch=i, capacity=capacity, full=full) for i in range(copies)
        )

    def queue(self, capacity: int | None = None, full: Full = "wait", name: str = "queue") -> Flow[T]:
        """Buffer up to `capacity` items, decoupling producer and consumer."""
        return Flow(Kind.QUEUE, name, (self,), capacity=capacity, full=full)

    def only(self, side: str) -> Flow[T]:
        """Return this merge, but emitting only one side's items; items of other sides still count toward the pace."""
        return replace(self, emitted_side=side)

    def named(self, name: str) -> Flow[T]:
        """Return the same stage under another name."""
        return replace(self, name=name)

    def upstream(self) -> Iterator[Flow[Any]]:
        """Yield this stage and all that feed it, topologically sorted."""
        seen: set[int] = set()

        def visit(flow: Flow[Any]) -> Iterator[Flow[Any]]:
            if id(flow) in seen:
                return
            seen.add(id(flow))
            for before in flow.inputs:
                yield from visit(before)
            yield flow

        return visit(self)


@overload
def source(
    operator: Callable[[], T | Awaitable[T]],
    *,
    at: Located | None = None,
    name: str | None = None,
    traits: Traits | None = None,
) -> Flow[T]: ...


@overload
def source(
    operator: Callable[[At], T | Awaitable[T]], *, at: At, name: str | None = None, traits: Traits | None = None
) -> Flow[T]: ...


def source(
    operator: Callable[..., Any], *, at: Any = None, name: str | None = None, traits: Traits | None = None
) -> Flow[Any]:
    """Make a flow from an operator that returns one item per call.

    The operator ends the flow by raising StopIteration or EndOfFlow. The stage runs where `at` lives; operators with a
    parameter receive `at`.
    """
    call = stage_call(operator, at, traits, is_source=True)
    return Flow(Kind.SOURCE, name or name_of(operator), call=call, description=describe(operator))


def merge(pace: Pace | None = None, name: str = "merge", **sides: Flow[Any]) -> Flow[Any]:
    """Interleave several flows as the pace prescribes."""
    return Flow(Kind.MERGE, name, tuple(sides.values()), pace=pace, sides=tuple(sides))
