"""Flows: typed streams of items, described and not run.

A flow is a value. `then`, `gather`, `split`, `fork`, `queue` and `merge` make new flows out of it and run nothing:

    >>> numbers = source(iter([1, 2, 3]).__next__, name="numbers")
    >>> doubled = numbers.then(lambda n: n * 2, name="double")
    >>> [flow.name for flow in doubled.upstream()]
    ['numbers', 'double']
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, Literal, TypeVar, overload

from marlflow.flow.operators import GatherOperator, Located, Place, StageCall, describe, name_of, stage_call
from marlflow.flow.pace import Pace
from marlflow.flow.traits import NO_TRAITS, Traits, traits_of

T = TypeVar("T")
U = TypeVar("U")
At = TypeVar("At", bound=Located)
Full = Literal["wait", "drop_oldest"]


class Kind(Enum):
    """What a stage does with its items."""

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
    """The stream that leaves a stage. Two flows are equal only if they are the same stage."""

    kind: Kind
    name: str
    inputs: tuple[Flow[Any], ...] = ()
    call: StageCall | None = None
    """Its operator, with what it runs at; None of a fork, a branch, a queue and a merge."""
    capacity: int | None = None
    full: Full = "wait"
    branch: Hashable = None
    branches: tuple[Hashable, ...] = ()
    pace: Pace | None = None
    sides: tuple[str, ...] = ()
    handed_on: str | None = None
    """Of a merge: the side whose items it hands on; None: all."""
    shown: str = ""
    gives: Any = None
    """The type of its items, where a stage moved ahead of it has made them more than its operator says."""

    @property
    def operator(self) -> Any:
        """The operator; None of a fork, a branch, a queue and a merge."""
        return None if self.call is None else self.call.operator

    @property
    def at(self) -> Any:
        """What the stage runs at: a learner, a replay; None: it runs on the driver."""
        return None if self.call is None else self.call.at

    @property
    def place(self) -> Place | None:
        """Where the stage runs; None is the driver."""
        return self.at.place if isinstance(self.at, Located) else None

    @property
    def traits(self) -> Traits:
        """The traits of its operator, with the types of its items; the defaults if it has none."""
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
        self,
        operator: Callable[..., Any],
        *,
        at: Any = None,
        name: str | None = None,
        traits: Traits | None = None,
    ) -> Flow[Any]:
        """One item out for each item in.

        The stage runs where `at` is, and an operator of two parameters is handed that after the item. `traits` are for
        a function, which cannot declare its own.
        """
        call = stage_call(operator, at, traits)
        return Flow(Kind.THEN, name or name_of(operator), (self,), call, shown=describe(operator))

    def gather(self, operator: GatherOperator[T, U], *, name: str | None = None) -> Flow[U]:
        """Items out as the operator completes them: n to 0 or more. It runs on the driver."""
        call = StageCall(operator, None, traits_of(operator, None, "add", None), passes_at=False)
        return Flow(Kind.GATHER, name or name_of(operator), (self,), call, shown=describe(operator))

    def split(
        self,
        operator: Callable[[T], Iterable[tuple[Hashable, U]]],
        branches: Sequence[Hashable],
        *,
        name: str | None = None,
    ) -> Mapping[Hashable, Flow[U]]:
        """Each item routed to the branches that the operator names; a flow for each of `branches`. On the driver."""
        call = StageCall(operator, None, traits_of(operator, None, "route", None), passes_at=False)
        name = name or name_of(operator)
        stage: Flow[Any] = Flow(Kind.SPLIT, name, (self,), call, branches=tuple(branches), shown=describe(operator))
        return {key: Flow(Kind.BRANCH, f"{stage.name}[{key}]", (stage,), branch=key, capacity=1) for key in branches}

    def fork(
        self, copies: int, capacity: int | None = None, full: Full = "wait", name: str = "fork"
    ) -> tuple[Flow[T], ...]:
        """Every item leaves by each of `copies` branches.

        A branch holds up to `capacity` items; a full one makes the others wait, or drops its own oldest.
        """
        stage: Flow[T] = Flow(Kind.FORK, name, (self,), branches=tuple(range(copies)), capacity=capacity, full=full)
        return tuple(
            Flow(Kind.BRANCH, f"{name}[{i}]", (stage,), branch=i, capacity=capacity, full=full) for i in range(copies)
        )

    def queue(self, capacity: int | None = None, full: Full = "wait", name: str = "queue") -> Flow[T]:
        """Holds up to `capacity` items, so that what is before and what is behind need not keep step."""
        return Flow(Kind.QUEUE, name, (self,), capacity=capacity, full=full)

    def only(self, side: str) -> Flow[T]:
        """The same merge, which hands on the items of one side: the others end there, and count for the pace alone."""
        return replace(self, handed_on=side)

    def named(self, name: str) -> Flow[T]:
        """The same stage under another name."""
        return replace(self, name=name)

    def upstream(self) -> Iterator[Flow[Any]]:
        """Every stage the items of this flow come through, sources first, each once."""
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
    """A flow out of nothing: the operator makes each item, and ends the flow by raising StopIteration or EndOfFlow.

    The stage runs where `at` is, and an operator of one parameter is handed that.
    """
    call = stage_call(operator, at, traits, is_source=True)
    return Flow(Kind.SOURCE, name or name_of(operator), call=call, shown=describe(operator))


def merge(pace: Pace | None = None, name: str = "merge", **sides: Flow[Any]) -> Flow[Any]:
    """One flow out of several, interleaved as the pace says."""
    return Flow(Kind.MERGE, name, tuple(sides.values()), pace=pace, sides=tuple(sides))
