"""What stands inside a stage: operators, and the places where they run.

An operator of `then` is a callable of one item; of `gather` an object with `add(item)`, which returns the items that
are now complete; of `split` a callable that returns (branch, item) pairs; of `source` a callable of nothing. Each
returns its value or something awaitable. What it takes and gives is read from its annotations, or from `accepts` and
`emits` where they depend on how it was made.

A source ends its flow by raising StopIteration or, where Python forbids that (in a coroutine), EndOfFlow:

    >>> async def numbers():
    ...     raise EndOfFlow

What else an operator may declare: `place` (a Place, where it runs), `name`, `routes` (of a split: the type of what it
routes), `at_most_one` (of a gather: it never gives several items for one), `agent_steps` (of a gather: it gives nothing
before it has been given so many of them), `updates` (the learner that it changes), `publishes` (it hands out weights),
`under_way` (of a source: how many of its items have begun already, and have to be asked for before the plan can be at
rest), `max_staleness` (how many versions old its rows may be), `held` (of a gather: a list of the items that it keeps
between calls, which is kept with the plan's state and put back), `rest` (of a gather: gives what it still holds, when
it is known that nothing more will come).

What decides whether it may run elsewhere (see relocate): `by_segment` (it needs of its learner or replay no more than
values and a version: True if it may be given any part of the segments, to the same end; False if whole batches),
`gives_segments` (False: not even parts of them, so that nothing that takes any may come behind it), `passes_segments`
(it gives segments as they came, all or some, so that others may run ahead of it), `stays` (why it is
not to be moved).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import or_ as operator_or
from typing import Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class EndOfFlow(Exception):
    """A source raises it when nothing more will come; the one way for a source that is awaited."""


class GatherOperator(Protocol[In_contra, Out_co]):
    """Keeps items until they make up others: n to 0 or more."""

    def add(self, item: In_contra) -> Sequence[Out_co]:
        """Takes one item; returns those that are now complete."""


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

    Neighbouring stages of one place become one call: `prepare` is told the operators once, before the first item;
    what it returns runs them, in order, on each item of a list (`None` for each turn of a source). Fewer outputs than
    turns, and none lost, say that the source has ended. An operator's own exception comes as OperatorRaised.
    """

    @property
    def name(self) -> str:
        """What plans and errors call it."""
        ...

    def prepare(self, operators: Sequence[Any]) -> Callable[[Sequence[Any]], Outcome | Awaitable[Outcome]]:
        """Makes the operators known to the place; runs nothing."""


class OperatorRaised(Exception):
    """An operator raised at its place: `position` is its index in the call, the cause is the operator's own."""

    def __init__(self, position: int, reason: str) -> None:
        self.position, self.reason = position, reason
        super().__init__(position, reason)

    def __str__(self) -> str:
        return self.reason


class Bridged(Protocol):
    """A type that says which stage makes it out of which other, by name: `check()` proposes it."""

    made_from: ClassVar[Mapping[str, str]]


def place_of(operator: Any) -> Place | None:
    """Where the operator asks to run; None is the driver."""
    place: Place | None = getattr(operator, "place", None)
    return place


def name_of(operator: Any) -> str:
    """The operator's own `name`, or its function's or class's."""
    name = getattr(operator, "name", None) or getattr(operator, "__name__", None) or type(operator).__name__
    return str(name)


def describe(operator: Any) -> str:
    """The operator with its settings, as the plan is printed: whole numbers, texts and truths only."""
    is_settled = dataclasses.is_dataclass(operator) and not isinstance(operator, type)
    shown = {f.name: getattr(operator, f.name) for f in dataclasses.fields(operator) if f.repr} if is_settled else {}
    settings = [f"{name}={value!r}" for name, value in shown.items() if isinstance(value, int | float | str | bool)]
    return f"{name_of(operator)}({', '.join(settings)})" if settings else name_of(operator)


def accepts(operator: Any, method: str = "__call__") -> Any:
    """The type of item the operator takes; Any where it does not say."""
    if (declared := getattr(operator, "accepts", None)) is not None:
        return declared
    function, bound = _function(operator, method)
    if function is None:
        return Any
    parameters = list(inspect.signature(function).parameters)[bound:]
    return _hints(function).get(parameters[0], Any) if parameters else Any


def emits(operator: Any, method: str = "__call__") -> Any:
    """The type of item the operator gives, out of its awaitable or list; Any where it does not say."""
    if (declared := getattr(operator, "emits", None)) is not None:
        return declared
    function, _ = _function(operator, method)
    result = _hints(function).get("return", Any) if function is not None else Any
    return _without_awaitable(_inside(result) if method == "add" else result)


def _function(operator: Any, method: str) -> tuple[Any, int]:
    """The Python function that will run, and how many of its first parameters are already bound."""
    if inspect.isfunction(operator):
        return operator, 0
    if inspect.ismethod(operator):
        return operator.__func__, 1
    function = None if inspect.isclass(operator) else getattr(type(operator), method, None)
    return (function, 1) if inspect.isfunction(function) else (None, 0)


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # names that exist only for type checkers: the stage is taken as untyped
        return {}


def _without_awaitable(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return functools.reduce(operator_or, (_without_awaitable(option) for option in get_args(hint)))
    return get_args(hint)[0] if _awaits(hint) and get_args(hint) else hint


def _awaits(hint: Any) -> bool:
    origin = get_origin(hint)
    return inspect.isclass(origin) and issubclass(origin, Awaitable)


def _inside(hint: Any) -> Any:
    origin = get_origin(hint)
    if inspect.isclass(origin) and issubclass(origin, Iterable) and get_args(hint):
        return get_args(hint)[0]
    return Any


def fits(got: Any, expected: Any) -> bool:
    """Whether items of type `got` can be handed to a stage that expects `expected`; unknown types fit anything."""
    if got is Any or expected is Any or isinstance(got, TypeVar) or isinstance(expected, TypeVar):
        return True
    wanted = options(expected)
    return all(any(_is_a(option, want) for want in wanted) for option in options(got))


def options(hint: Any) -> tuple[Any, ...]:
    """The types a union is of; any other type alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_a(got: Any, want: Any) -> bool:
    got, want = get_origin(got) or got, get_origin(want) or want
    if not inspect.isclass(got) or not inspect.isclass(want):
        return bool(got == want)
    return issubclass(got, want)


def bridge(got: Any, expected: Any) -> str | None:
    """The stage that makes `expected` out of `got`, as the expected type declares it."""
    for option in options(expected):
        made_from = getattr(option, "made_from", {})
        for source in options(got):
            if (stage := made_from.get(type_name(source))) is not None:
                return str(stage)
    return None


def type_name(hint: Any) -> str:
    """The type as an error message shows it."""
    return " or ".join(getattr(option, "__name__", str(option)) for option in options(hint))
