"""What a plan has to know of an operator to check it, to pace it and to place it: its traits."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from marlflow.flow.item_types import annotated_input, annotated_output, annotated_route

Movable: TypeAlias = Literal["fragments", "batches"]


@dataclass(frozen=True, slots=True)
class Traits:
    """An operator's class gives them as `traits`, a class variable or a property; `then(..., traits=...)` otherwise.

    A function without any has the defaults, which are right for most operators.
    """

    accepts: Any = None
    """The type of item that it takes, or a function of what its stage runs at that says so; None: as annotated."""
    emits: Any = None
    """The type of item that it gives (of a split: that it routes), or of a gather a function of the type that comes;
    None: as annotated."""
    routes: Mapping[Hashable, Any] | None = None
    """Of a split: the type of the items of each branch for which it is not what `emits` says."""
    at_most_one: bool = False
    """Of a gather: it never gives several items for one, so it may stand in a side of a ratio."""
    agent_steps: int = 0
    """Of a gather: it gives nothing before it has been given so many agent steps."""
    updates: bool = False
    """It changes the parameters of the learner that it runs at."""
    publishes: bool = False
    """It hands out the weights of the learner that it runs at, under a new version."""
    max_staleness: int | None = None
    """How many versions old the rows are that it lets pass; None: it does not look."""
    movable: Movable | None = None
    """Whether `placement.stages` may have it run apart from its learner or replay, of which it then needs no more than
    values and a version: with any "fragments" of the segments, to the same end, or with whole "batches" only."""
    unmovable_because: str | None = None
    """Why it cannot run apart from its learner or replay, for the error of whoever asks."""
    emits_segments: bool = True
    """False: it gives not even parts of segments, so a stage that takes any cannot come after it."""
    keeps_segments: bool = False
    """It gives segments as they came, all or some of them, so that other stages may run ahead of it."""


NO_TRAITS = Traits()


def traits_of(operator: Any, at: Any, method: str, given: Traits | None) -> Traits:
    """`given`, or what the operator declares, with the types of its items; `at` is what its stage runs at.

    `method` is what is called of it: `__call__`, `add` of a gather, `route` stands for the `__call__` of a split.
    """
    declared = getattr(operator, "traits", None)
    own = given or (declared if isinstance(declared, Traits) else NO_TRAITS)
    accepts, emits = own.accepts, own.emits
    if accepts is None:
        accepts = annotated_input(operator, "add" if method == "add" else "__call__")
    elif inspect.isfunction(accepts):
        accepts = Any if at is None else accepts(at)
    if emits is None:
        emits = annotated_route(operator) if method == "route" else annotated_output(operator, method)
    return replace(own, accepts=accepts, emits=emits)
