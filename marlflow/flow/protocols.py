"""Protocols of operators and of the places where they run; the operators themselves are in `marlflow.stages`.

An operator is a callable. `at` is what its stage runs at, passed if there is a required parameter for it: `then` takes
(item) or (item, at), `source` nothing or (at). A `split` operator maps an item to (branch, item) pairs; a `gather`
operator has `add(item)`, which returns completed items. Results may be awaitable. A source ends its flow by raising
StopIteration or, in a coroutine, EndOfFlow.
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
    """Raised at the end of a source; coroutines cannot raise StopIteration."""


class GatherOperator(Protocol[In_contra, Out_co]):
    """Combines items: n inputs to 0 or more outputs."""

    def add(self, item: In_contra) -> Sequence[Out_co]:
        """Add one item; return the items now complete."""


@runtime_checkable
class HoldsItems(Protocol):
    """A gather whose buffered items belong to the plan's state."""

    held: list[Any]


@runtime_checkable
class GivesRest(Protocol):
    """A gather that can emit an incomplete remainder."""

    def rest(self) -> Sequence[Any]:
        """Remove and return everything it holds."""


@runtime_checkable
class BeginsAhead(Protocol):
    """A source that starts items before they are requested."""

    @property
    def under_way(self) -> int:
        """Number of items started but not yet requested; they delay the plan's rest."""
        ...


MOST_AHEAD = 1 << 20
"""More items than a call has."""


@runtime_checkable
class RunsAhead(Protocol):
    """An operator of a fused call that may take several items before the stages after it take the first.

    `after` are the calls of these stages. The outputs and effects of all stages must be the same as with one item at a
    time.
    """

    def ahead(self, at: Any, after: Sequence[StageCall]) -> int:
        """Return how many items `several` may take now; 0: none, so the operator is called with one item at a time."""
        ...

    def several(self, items: Sequence[Any], at: Any, after: Sequence[StageCall]) -> Sequence[Any]:
        """Return the outputs of `items`."""
        ...


@dataclass(frozen=True, slots=True)
class StageTimes:
    """When an operator ran (seconds since the epoch), and the rows it emitted."""

    began_s: float
    ended_s: float
    rows: int

    @staticmethod
    def total(times: Sequence[StageTimes]) -> StageTimes:
        """Return one call as long as all of `times` together, which may be of processes that run in parallel."""
        began_s = min([call.began_s for call in times], default=0.0)
        spent_s = sum(call.ended_s - call.began_s for call in times)
        return StageTimes(began_s, began_s + spent_s, sum(call.rows for call in times))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call at a place: an output per item, and each operator's times.

    `lost` items were lost with their process: dropped, without using a turn.
    """

    outputs: Sequence[Any]
    times: Sequence[StageTimes]
    lost: int = 0


class Place(Protocol):
    """A process where operators run: a learner's, a replay's, or the rollout workers'.

    Adjacent stages at one place become one call. A source that returns too few outputs, none lost, has ended.
    Operators' exceptions are raised as OperatorRaised.
    """

    @property
    def name(self) -> str:
        """The name in plans and errors."""
        ...

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Outcome | Awaitable[Outcome]]:
        """Register a chain of calls; return the function that runs it on items (None per source turn)."""


@runtime_checkable
class Located(Protocol):
    """Anything a stage can run at, such as a learner or a replay."""

    @property
    def name(self) -> str:
        """The name in errors."""
        ...

    @property
    def place(self) -> Place | None:
        """Where it lives; None: in the driver process."""
        ...


@dataclass(frozen=True, slots=True)
class StageCall:
    """An operator with what its stage runs at; callable with one item, which a source ignores."""

    operator: Any
    # If the place is in another process, this arrives there as the local object.
    at: Any
    traits: Traits
    passes_at: bool
    """Whether the operator receives `at`, after the item if it takes one."""
    is_source: bool = False

    def __call__(self, item: Any) -> Any:
        if self.is_source:
            return self.operator(self.at) if self.passes_at else self.operator()
        return self.operator(item, self.at) if self.passes_at else self.operator(item)


class OperatorRaised(Exception):
    """Wraps an operator's exception (`__cause__`); `position` is its index in the call."""

    def __init__(self, position: int, reason: str) -> None:
        self.position, self.reason = position, reason
        super().__init__(position, reason)

    def __str__(self) -> str:
        return self.reason


def stage_call(operator: Any, at: Any = None, traits: Traits | None = None, is_source: bool = False) -> StageCall:
    """Make the call of a `then` or source stage; `call_problem` checks it."""
    passes_at = len(_Parameters.of(operator).required) == (1 if is_source else 2)
    located = at if isinstance(at, Located) else None
    return StageCall(operator, at, traits_of(operator, located, "__call__", traits), passes_at, is_source)


def call_problem(call: StageCall) -> str | None:
    """Return why a `then` or source cannot call its operator, or None."""
    if not callable(call.operator):
        return f"has the operator {call.operator!r}, which is not callable; give it a function"
    if call.at is not None and not isinstance(call.at, Located):
        lacks = " and no ".join(f"`{name}`" for name in ("name", "place") if not hasattr(call.at, name))
        return f"is to run at {call.at!r}, which has no {lacks}; give it a learner or a replay"
    parameters, items = _Parameters.of(call.operator), 0 if call.is_source else 1
    forms = "nothing or what it runs at" if call.is_source else "an item, or an item and what it runs at"
    if parameters.by_name or parameters.max_count < items or len(parameters.required) > items + 1:
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
    required: Sequence[str] = ()
    by_name: Sequence[str] = ()
    max_count: float = 1

    @classmethod
    def of(cls, operator: Any) -> _Parameters:
        try:
            parameters = inspect.signature(operator).parameters.values()
        # Some builtins have no signature; they are assumed to take one parameter.
        except (TypeError, ValueError):
            return cls()
        by_position = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        by_name = [
            parameter.name
            for parameter in parameters
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        ]
        takes_all = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        required = [parameter.name for parameter in by_position if parameter.default is parameter.empty]
        return cls(required, by_name, float("inf") if takes_all else len(by_position))


def name_of(operator: Any) -> str:
    """Return the name of the operator's function or class."""
    return str(getattr(operator, "__name__", None) or type(operator).__name__)


def describe(operator: Any) -> str:
    """Return the operator's `description`, or its name and plain settings without flags that are off, for printing."""
    if isinstance(description := getattr(operator, "description", None), str):
        return description
    is_settled = dataclasses.is_dataclass(operator) and not isinstance(operator, type)
    values = {f.name: getattr(operator, f.name) for f in dataclasses.fields(operator) if f.repr} if is_settled else {}
    plain = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
    settings = [f"{name}={value!r}" for name, value in plain.items() if value is not False]
    return f"{name_of(operator)}({', '.join(settings)})" if settings else name_of(operator)
