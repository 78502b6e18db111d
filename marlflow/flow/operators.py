"""What stands inside a stage: operators, and the places where they run.

An operator of `then` is a callable of one item; of `gather` an object with `add(item)`, which returns the items that
are now complete; of `split` a callable that returns (branch, item) pairs; of `source` a callable of nothing. Each
returns its value or something awaitable. What it takes and gives is read from its annotations, or from `accepts` and
`emits` where they depend on how it was made.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


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
    """What a place returns of one call: an output for each item, and the times of each operator, in order."""

    outputs: Sequence[Any]
    times: Sequence[StageTimes]


class Place(Protocol):
    """Where operators run when that is not the driver: a learner's process, a replay's, the rollout workers'.

    Neighbouring stages of one place become one call: `prepare` is told the operators once, before the first item;
    what it returns runs them, in order, on each item of a list (`None` for each turn of a source).
    """

    name: str

    def prepare(self, operators: Sequence[Any]) -> Callable[[Sequence[Any]], Outcome | Awaitable[Outcome]]:
        """Makes the operators known to the place; runs nothing."""


class OperatorRaised(Exception):
    """An operator raised at its place: `position` is its index in the call, the cause is the operator's own."""

    def __init__(self, position: int, reason: str) -> None:
        self.position, self.reason = position, reason
        super().__init__(position, reason)


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
    fields = getattr(operator, "__dataclass_fields__", {})
    shown = {name: getattr(operator, name) for name, f in fields.items() if f.repr}
    settings = [f"{name}={value!r}" for name, value in shown.items() if isinstance(value, int | float | str | bool)]
    return f"{name_of(operator)}({', '.join(settings)})" if settings else name_of(operator)


def accepts(operator: Any, method: str = "__call__") -> Any:
    """The type of item the operator takes; Any where it does not say."""
    if (declared := getattr(operator, "accepts", None)) is not None:
        return declared
    hints = _hints(operator, method)
    return next((hint for name, hint in hints.items() if name != "return"), Any)


def emits(operator: Any, method: str = "__call__") -> Any:
    """The type of item the operator gives, out of its awaitable or list; Any where it does not say."""
    if (declared := getattr(operator, "emits", None)) is not None:
        return declared
    result = _hints(operator, method).get("return", Any)
    if method == "add":
        result = _inside(result, Sequence)
    return _without_awaitable(result)


def _hints(operator: Any, method: str) -> dict[str, Any]:
    function = operator if inspect.isfunction(operator) else getattr(type(operator), method, None)
    if isinstance(operator, type | types.BuiltinFunctionType) or function is None:
        return {}
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # names that exist only for type checkers: the stage is taken as untyped
        return {}


def _without_awaitable(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        plain = [option for option in get_args(hint) if get_origin(option) is not Awaitable and not _awaits(option)]
        awaited = [get_args(option)[0] for option in get_args(hint) if _awaits(option)]
        return Union[tuple(plain + awaited)]
    return get_args(hint)[0] if _awaits(hint) else hint


def _awaits(hint: Any) -> bool:
    origin = get_origin(hint)
    return inspect.isclass(origin) and issubclass(origin, Awaitable)


def _inside(hint: Any, container: type) -> Any:
    origin = get_origin(hint)
    if inspect.isclass(origin) and issubclass(origin, Iterable) and get_args(hint):
        return get_args(hint)[0]
    return Any


def fits(got: Any, expected: Any) -> bool:
    """Whether items of type `got` can be handed to a stage that expects `expected`; unknown types fit anything."""
    if got is Any or expected is Any or isinstance(got, TypeVar) or isinstance(expected, TypeVar):
        return True
    wanted = _options(expected)
    return all(any(_is_a(option, want) for want in wanted) for option in _options(got))


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_a(got: Any, want: Any) -> bool:
    got, want = get_origin(got) or got, get_origin(want) or want
    if not inspect.isclass(got) or not inspect.isclass(want):
        return bool(got == want)
    return issubclass(got, want)


def bridge(got: Any, expected: Any) -> str | None:
    """The stage that makes `expected` out of `got`, as the expected type declares it."""
    for option in _options(expected):
        made_from = getattr(option, "made_from", {})
        for source in _options(got):
            if (stage := made_from.get(type_name(source))) is not None:
                return str(stage)
    return None


def type_name(hint: Any) -> str:
    """The type as an error message shows it."""
    return " or ".join(getattr(option, "__name__", str(option)) for option in _options(hint))


BranchKey = Hashable
