"""Operators, the places where they run, and the call of a stage, which binds the two.

An operator is a plain callable. One of `then` takes an item, or an item and what its stage runs at; one of `source`
takes nothing, or what its stage runs at; one of `split` takes an item and returns (branch, item) pairs. One of `gather`
is an object with `add(item)`, which returns the items that are now complete. Each returns its value or something
awaitable. Which of the two it takes is decided by its required parameters, once, when the stage is made. All else that
a plan has to know of it are its Traits.

A source ends its flow by raising StopIteration or, where Python forbids that (in a coroutine), EndOfFlow:

    >>> async def numbers():
    ...     raise EndOfFlow
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from marlflow.flow.traits import Traits, traits_of

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class EndOfFlow(Exception):
    """A source raises it when nothing more will come; the one way for a source that is awaited."""


class GatherOperator(Protocol[In_contra, Out_co]):
    """Keeps items until they make up others: n to 0 or more."""

    def add(self, item: In_contra) -> Sequence[Out_co]:
        """Takes one item; returns those that are now complete."""


@runtime_checkable
class HoldsItems(Protocol):
    """A gather whose items between calls are kept with the plan's state, and put back."""

    held: list[Any]


@runtime_checkable
class GivesRest(Protocol):
    """A gather that can give what it still holds, when it is known that nothing more will come."""

    def rest(self) -> Sequence[Any]:
        """All that it holds, as items."""


@runtime_checkable
class BeginsAhead(Protocol):
    """A source some of whose items have begun before they are asked for."""

    @property
    def under_way(self) -> int:
        """How many have begun: they have to be asked for before the plan can be at rest."""
        ...


@dataclass(frozen=True, slots=True)
class StageTimes:
    """When one operator ran over the items of a call: seconds since the epoch, and the rows that came out."""

    began_s: float
    ended_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a place returns of one call: an output for each item, and the times of each operator, in order.

    `lost` items went down with the process that they were at: they are counted as dropped, and use no turn of a pace.
    """

    outputs: Sequence[Any]
    times: Sequence[StageTimes]
    lost: int = 0


class Place(Protocol):
    """Where operators run when that is not the driver: a learner's process, a replay's, the rollout workers'.

    Neighboring stages of one place become one call: `prepare` is given the calls of all of them once, before the first
    item; what it returns runs them, in order, on each item of a list (`None` for each turn of a source). Fewer outputs
    than turns, and none lost, say that the source has ended. An operator's own exception comes as OperatorRaised.
    """

    @property
    def name(self) -> str:
        """What plans and errors call it."""
        ...

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Outcome | Awaitable[Outcome]]:
        """Makes the calls known to the place; runs nothing."""


@runtime_checkable
class Located(Protocol):
    """What a stage can run at: a learner, a replay, or anything else that has a place."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    @property
    def place(self) -> Place | None:
        """Where it is; None: in the driver's own process."""
        ...


@dataclass(frozen=True, slots=True)
class StageCall:
    """A stage's operator with what it runs at: a callable of one item, of which a source takes no notice.

    Where a place is in another process, the call is sent there, and `at` arrives as what it stands for.
    """

    operator: Any
    at: Any
    traits: Traits
    passes_at: bool
    """Whether the operator is handed `at`, after the item if it takes one."""
    is_source: bool = False

    def __call__(self, item: Any) -> Any:
        """What the operator gives."""
        if self.is_source:
            return self.operator(self.at) if self.passes_at else self.operator()
        return self.operator(item, self.at) if self.passes_at else self.operator(item)


class OperatorRaised(Exception):
    """An operator raised at its place: `position` is its index in the call, the cause is the operator's own."""

    def __init__(self, position: int, reason: str) -> None:
        self.position, self.reason = position, reason
        super().__init__(position, reason)

    def __str__(self) -> str:
        return self.reason


def stage_call(operator: Any, at: Any = None, traits: Traits | None = None, is_source: bool = False) -> StageCall:
    """The call of a `then` or of a source; `call_problem` says whether it can be made."""
    passes_at = len(_Parameters.of(operator).required) == (1 if is_source else 2)
    located = at if isinstance(at, Located) else None
    return StageCall(operator, at, traits_of(operator, located, "__call__", traits), passes_at, is_source)


def call_problem(call: StageCall) -> str | None:
    """Why the operator of a `then` or of a source cannot be called as its stage would; None if it can."""
    if not callable(call.operator):
        return f"has the operator {call.operator!r}, which is not callable; give it a function"
    if call.at is not None and not isinstance(call.at, Located):
        lacks = " and no ".join(f"`{name}`" for name in ("name", "place") if not hasattr(call.at, name))
        return f"is to run at {call.at!r}, which has no {lacks}; give it a learner or a replay"
    parameters, items = _Parameters.of(call.operator), 0 if call.is_source else 1
    forms = "nothing or what it runs at" if call.is_source else "an item, or an item and what it runs at"
    if parameters.by_name or parameters.most < items or len(parameters.required) > items + 1:
        return (
            f"hands its operator {forms}, but that takes ({', '.join([*parameters.required, *parameters.by_name])}); "
            "give the other parameters defaults, or bind them with functools.partial"
        )
    if call.passes_at and call.at is None:
        return (
            f"has nothing to run at, but its operator takes ({', '.join(parameters.required)}); "
            "say at=learner or at=replay"
        )
    return None


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The names of those that have to be given, by position and by name alone; how many can be given by position."""

    required: Sequence[str] = ()
    by_name: Sequence[str] = ()
    most: float = 1

    @classmethod
    def of(cls, operator: Any) -> _Parameters:
        """Builtins that have no signature are taken to have one parameter."""
        try:
            parameters = inspect.signature(operator).parameters.values()
        except (TypeError, ValueError):
            return cls()
        by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        by_name = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
        takes_all = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        required = [one.name for one in by_position if one.default is one.empty]
        return cls(required, by_name, float("inf") if takes_all else len(by_position))


def name_of(operator: Any) -> str:
    """The name of the operator's function or class."""
    return str(getattr(operator, "__name__", None) or type(operator).__name__)


def describe(operator: Any) -> str:
    """The operator with its settings, as the plan is printed: whole numbers, texts and truths only."""
    is_settled = dataclasses.is_dataclass(operator) and not isinstance(operator, type)
    shown = {f.name: getattr(operator, f.name) for f in dataclasses.fields(operator) if f.repr} if is_settled else {}
    settings = [f"{name}={value!r}" for name, value in shown.items() if isinstance(value, int | float | str | bool)]
    return f"{name_of(operator)}({', '.join(settings)})" if settings else name_of(operator)
