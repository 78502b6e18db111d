"""Traits: the facts about an operator that checks, paces and placement need; item types come from its annotations."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import or_ as operator_or
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints


def annotated_input(operator: Any, method: str = "__call__") -> Any:
    """Return the operator's input item type, or Any."""
    function, bound = _function(operator, method)
    if function is None:
        return Any
    parameters = list(inspect.signature(function).parameters)[bound:]
    return _hints(function).get(parameters[0], Any) if parameters else Any


def annotated_output(operator: Any, method: str = "__call__") -> Any:
    """Return the operator's output item type, inside an awaitable or list, or Any."""
    result = _return_hint(operator, method)
    return _without_awaitable(_element_type(result) if method == "add" else result)


def annotated_route(operator: Any) -> Any:
    """Return the item type of a split's (branch, item) pairs, or Any."""
    pair = get_args(_element_type(_return_hint(operator, "__call__")))
    return pair[1] if len(pair) == 2 else Any


def _return_hint(operator: Any, method: str) -> Any:
    function, _ = _function(operator, method)
    return _hints(function).get("return", Any) if function is not None else Any


def _function(operator: Any, method: str) -> tuple[Any, int]:
    if inspect.isfunction(operator):
        return operator, 0
    if inspect.ismethod(operator):
        return operator.__func__, 1
    function = None if inspect.isclass(operator) else getattr(type(operator), method, None)
    return (function, 1) if inspect.isfunction(function) else (None, 0)


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    # Names imported only under TYPE_CHECKING cannot be resolved, and text may be no type: treat the stage as untyped.
    except Exception:  # noqa: BLE001  evaluating an annotation may raise anything
        return {}


def _without_awaitable(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return functools.reduce(operator_or, (_without_awaitable(option) for option in get_args(hint)))
    return get_args(hint)[0] if _is_awaitable(hint) and get_args(hint) else hint


def _is_awaitable(hint: Any) -> bool:
    origin = get_origin(hint)
    return inspect.isclass(origin) and issubclass(origin, Awaitable)


def _element_type(hint: Any) -> Any:
    origin = get_origin(hint)
    if inspect.isclass(origin) and issubclass(origin, Iterable) and get_args(hint):
        return get_args(hint)[0]
    return Any


def fits(got: Any, expected: Any) -> bool:
    """Return whether items of type `got` are accepted as `expected`; unknown types fit."""
    if got is Any or expected is Any or isinstance(got, TypeVar) or isinstance(expected, TypeVar):
        return True
    wanted = options(expected)
    return all(any(_is_a(option, want) for want in wanted) for option in options(got))


def options(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the single type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_a(got: Any, want: Any) -> bool:
    got, want = get_origin(got) or got, get_origin(want) or want
    if not inspect.isclass(got) or not inspect.isclass(want):
        return bool(got == want)
    return issubclass(got, want)


def bridge(got: Any, expected: Any) -> str | None:
    """Return the stage that makes `expected` from `got`, if any."""
    for option in options(expected):
        made_from = getattr(option, "made_from", {})
        for source in options(got):
            if (stage := made_from.get(type_name(source))) is not None:
                return str(stage)
    return None


def type_name(hint: Any) -> str:
    """Return the type's name for error messages."""
    return " or ".join(getattr(option, "__name__", str(option)) for option in options(hint))


Movable: TypeAlias = Literal["fragments", "batches"]


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of an operator, as the class attribute `traits` or in `then(..., traits=...)`."""

    accepts: Any = None
    """The input item type, or a function from the stage's place to that type; None: as annotated."""
    emits: Any = None
    """The output item type (of a split: of the routed items), or for a gather a function of its input type; None: as
    annotated.
    """
    routes: Mapping[Hashable, Any] | None = None
    """Splits: the item type of each branch whose type is not `emits`."""
    at_most_one: bool = False
    """Gathers: never emits several items for one input, so an exact ratio may include it."""
    agent_steps: int = 0
    """Gathers: emits nothing before receiving this many agent steps."""
    updates: bool = False
    """Changes the parameters of the learner it runs at."""
    groups: tuple[str, ...] | None = None
    """With `updates`: the loss groups of the learner that it changes, of its `loss_groups`; None: all parameters."""
    not_compiled: str = ""
    """Why the updates of a learner whose plan has this stage cannot be compiled; empty if they can."""
    over_shards: bool = False
    """With a learner on the workers: takes the rows of all of them together, and each replica calls it at once."""
    publishes: bool = False
    """Publishes its learner's weights under a new version."""
    max_staleness: int | None = None
    """The oldest rows that pass, in versions, as DropStale sets it for on-policy learners; None: not checked."""
    movable: Movable | None = None
    """Whether `placement.stages` may run it away from its learner or replay, using only values and a version: on any
    "fragments" of the segments with the same result, or on whole "batches" only.
    """
    unmovable_because: str | None = None
    """The reason in the error when a user tries to move it."""
    emits_segments: bool = True
    """False: its output contains no segments, so a stage that takes segments cannot follow it."""
    keeps_segments: bool = False
    """Emits input segments unchanged, all or some, so other stages may move ahead of it."""


NO_TRAITS = Traits()


def traits_of(operator: Any, at: Any, method: str, given: Traits | None) -> Traits:
    """Return `given` or the operator's declared traits, with item types filled in.

    `at` is what its stage runs at; `method` is `__call__`, `add` (gather) or `route` (split).
    """
    declared = getattr(operator, "traits", None)
    traits = given or (declared if isinstance(declared, Traits) else NO_TRAITS)
    accepts, emits = traits.accepts, traits.emits
    if accepts is None:
        accepts = annotated_input(operator, "add" if method == "add" else "__call__")
    elif inspect.isfunction(accepts):
        accepts = Any if at is None else accepts(at)
    if emits is None:
        emits = annotated_route(operator) if method == "route" else annotated_output(operator, method)
    return replace(traits, accepts=accepts, emits=emits)
