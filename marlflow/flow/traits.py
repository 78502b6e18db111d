"""Traits: what checking, pacing and placement need to know about an operator."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from marlflow.flow.item_types import annotated_input, annotated_output, annotated_route

Movable: TypeAlias = Literal["fragments", "batches"]


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of an operator, as the class attribute `traits` or in `then(..., traits=...)`."""

    accepts: Any = None
    """The input item type, or a function from what the stage runs at to that type; None: as annotated."""
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
