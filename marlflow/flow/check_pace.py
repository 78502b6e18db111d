"""Checks of paces: ratios that would deadlock, or could not be exact."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_origin

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.item_types import options, type_name
from marlflow.flow.pace import AgentSteps, InTurn, Pace
from marlflow.flow.plan import Plan, head_stages, producers


def pace_problems(plans: tuple[Plan, ...], stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    """Yield one sentence per problem of a pace."""
    for plan in plans:
        where = f"plan {plan.name!r}"
        if plan.also and plan.pace is None:
            yield f"{where} has several flows and no pace: say Freely() or InTurn({_shares(plan.ends())})"
        elif plan.pace is not None:
            yield from _ratio_problems(where, plan.pace, plan.ends())
    for stage in stages:
        if stage.kind is not Kind.MERGE:
            continue
        where = f"merge {stage.name!r} of plan {owner[id(stage)]!r}"
        if stage.emitted_side not in (None, *stage.sides):
            yield f"{where} is to hand on only {stage.emitted_side!r}, but its sides are {_join_names(stage.sides)}"
        if stage.pace is None:
            yield f"{where} has no pace: say Freely() or InTurn({_shares(stage.sides)})"
        else:
            yield from _ratio_problems(where, stage.pace, _sides(stage))


def paces_of(plan: Plan) -> Iterator[tuple[Pace | None, Mapping[str, Flow[Any]]]]:
    """Yield the paces of the plan and its merges, with their sides."""
    yield plan.pace, plan.ends()
    for stage in plan.stages():
        if stage.kind is Kind.MERGE:
            yield stage.pace, _sides(stage)


def regions(ends: Mapping[str, Flow[Any]]) -> list[Flow[Any]]:
    """Return the stages from the sides' ends back to where the pace holds them."""
    return [stage for end in ends.values() for stage in _region(end)]


def _sides(merge: Flow[Any]) -> dict[str, Flow[Any]]:
    return dict(zip(merge.sides, merge.inputs, strict=True))


def _ratio_problems(where: str, pace: Pace, ends: dict[str, Flow[Any]]) -> Iterator[str]:
    if not isinstance(pace, InTurn):
        return
    yield from (f"{where}: {problem}" for problem in pace.problems())
    if pace.sides() != frozenset(ends):
        kind = type(pace).__name__
        yield f"{where}: {kind} is between {_join_names(pace.sides())}, but the flows are {_join_names(ends)}"
        return
    for side, share in pace.shares:
        hints = [hint for _, hint in producers(ends[side])]
        uncounted = [hint for hint in hints if not any(map(_has_rows, options(hint)))]
        if isinstance(share, AgentSteps) and uncounted:
            yield (
                f"{where}: {side!r} is paced in agent steps, but its items ({type_name(uncounted[0])}) have no `rows`: "
                "it would earn no turn for any input; end it with a stage that counts, such as Insert"
            )
    for side, end in ends.items():
        for stage in _region(end):
            if stage.kind is Kind.GATHER and not stage.traits.at_most_one:
                yield (
                    f"{where}: stage {stage.name!r} of side {side!r} may give several items for one, which breaks the "
                    "ratio; put it before the fork or queue, or give its operator Traits(at_most_one=True)"
                )
    yield from _fork_problems(where, pace, ends)


def _shares(sides: Iterable[str]) -> str:
    return ", ".join(f"{side}=..." for side in sides)


def _join_names(names: Iterable[str]) -> str:
    return " and ".join(repr(name) for name in sorted(names))


def _has_rows(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    # Unknown types get the benefit of the doubt.
    if kind is Any or not inspect.isclass(kind):
        return True
    # Dataclass fields without default are annotations only, not class attributes.
    return hasattr(kind, "rows") or any("rows" in vars(base).get("__annotations__", {}) for base in kind.__mro__)


def _region(end: Flow[Any]) -> list[Flow[Any]]:
    if end.kind in (Kind.BRANCH, Kind.QUEUE):
        return []
    return [end, *(stage for before in end.inputs for stage in _region(before))]


def _fork_problems(where: str, pace: InTurn, ends: dict[str, Flow[Any]]) -> Iterator[str]:
    # Branches of one blocking fork receive equally many items: with unequal shares one branch fills up and deadlocks.
    shares = {name: share for name, share in pace.shares if isinstance(share, int)}
    forks: dict[int, dict[str, int]] = {}
    for side, share in shares.items():
        heads = head_stages(ends[side])
        one_to_one = all(stage.kind is Kind.THEN for stage in _region(ends[side]))
        if len(heads) == 1 and one_to_one and heads[0].kind is Kind.BRANCH and heads[0].inputs[0].kind is Kind.FORK:
            fork = heads[0].inputs[0]
            if fork.full == "wait":
                forks.setdefault(id(fork), {})[side] = share
    for sides in forks.values():
        if len(set(sides.values())) > 1:
            ratio = ", ".join(f"{side}={share}" for side, share in sides.items())
            yield (
                f"{where}: the sides of InTurn({ratio}) are branches of one fork, which bring item for item the same: "
                "it would block for every input; give equal shares, or drop_oldest on the fork"
            )
