"""What is wrong with a plan, all of it at once, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.operators import accepts, bridge, emits, fits, type_name
from marlflow.flow.pace import AgentSteps, InTurn, Pace
from marlflow.flow.plan import AnyPlan, Plan, Together, all_stages, consumers, head_stages, owners

_PLUMBING = (Kind.QUEUE, Kind.FORK, Kind.BRANCH)


def problems(plan: AnyPlan) -> list[str]:
    """One sentence for each thing that is wrong with the plan; none if it can run."""
    plans = plan.plans if isinstance(plan, Together) else (plan,)
    stages, owner = all_stages(plan), owners(plan)
    found = [*_names(plans, stages, owner), *_neighbours(stages, owner), *_capacities(stages, owner)]
    found += [*_uses(plan, stages, owner), *_paces(plans, stages, owner), *_learners(stages, owner)]
    if isinstance(plan, Together):
        found += _rounds(plan)
    return found


def _where(stage: Flow[Any], owner: dict[int, str]) -> str:
    return f"plan {owner[id(stage)]!r}"


def _names(plans: tuple[Plan, ...], stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for name, count in Counter(plan.name for plan in plans).items():
        if count > 1:
            yield f"{count} plans are named {name!r}: give each a name of its own"
    named = Counter((owner[id(s)], s.name) for s in stages if s.kind not in (*_PLUMBING, Kind.MERGE))
    named += Counter((owner[id(s)], s.name) for s in stages if s.kind in (Kind.QUEUE, Kind.MERGE))
    for (plan, name), count in named.items():
        if count > 1:
            yield f"plan {plan!r} has {count} stages named {name!r}: tell them apart with name=... or .named(...)"


def item_type(flow: Flow[Any]) -> Any:
    """The type of item a flow carries; Any where no stage says."""
    if flow.kind in (Kind.SOURCE, Kind.THEN):
        return emits(flow.operator)
    if flow.kind is Kind.GATHER:
        return emits(flow.operator, "add")
    if flow.kind is Kind.BRANCH and flow.inputs[0].kind is Kind.SPLIT:
        return getattr(flow.inputs[0].operator, "routes", Any)
    return item_type(flow.inputs[0]) if len(flow.inputs) == 1 else Any


def _neighbours(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for stage in stages:
        if stage.kind not in (Kind.THEN, Kind.GATHER, Kind.SPLIT):
            continue
        got = item_type(stage.inputs[0])
        expected = accepts(stage.operator, "add" if stage.kind is Kind.GATHER else "__call__")
        if fits(got, expected):
            continue
        mend = bridge(got, expected)
        before = _producer(stage.inputs[0])
        yield (
            f"stage {stage.name!r} of {_where(stage, owner)} expects {type_name(expected)}, but {before.name!r} gives "
            f"{type_name(got)}" + (f"; put {mend} between them" if mend else "")
        )


def _producer(flow: Flow[Any]) -> Flow[Any]:
    return _producer(flow.inputs[0]) if flow.kind in _PLUMBING else flow


def _capacities(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for stage in stages:
        if stage.kind not in (Kind.FORK, Kind.QUEUE):
            continue
        what = f"{'a fork' if stage.kind is Kind.FORK else f'queue {stage.name!r}'} of {_where(stage, owner)}"
        if stage.capacity is None:
            yield f"{what} has no capacity: say how many items it may hold"
        elif stage.capacity < 1:
            yield f"{what} has a capacity of {stage.capacity}: it would block for every input; give at least 1"
        if stage.full not in ("wait", "drop_oldest"):
            yield f"{what} is to {stage.full!r} when full; choose 'wait' or 'drop_oldest'"


def _uses(plan: AnyPlan, stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    taken = consumers(stages)
    plans = plan.plans if isinstance(plan, Together) else (plan,)
    ends = Counter(id(end) for one in plans for end in one.ends().values())
    for stage in stages:
        uses = len(taken[id(stage)]) + ends[id(stage)]
        if stage.kind in (Kind.FORK, Kind.SPLIT):
            used = {branch.branch for branch in taken[id(stage)]}
            for key in stage.branches:
                if key not in used:
                    yield (
                        f"branch {key!r} of {stage.name!r} in {_where(stage, owner)} is taken by nobody: it would fill up "
                        "and block for every input; use it, or make one branch fewer"
                    )
        elif uses > 1:
            yield (
                f"the flow after {stage.name!r} of {_where(stage, owner)} is taken {uses} times: "
                f"give each its own with .fork({uses}, capacity=...)"
            )


def _paces(plans: tuple[Plan, ...], stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for plan in plans:
        what = f"plan {plan.name!r}"
        if plan.also and plan.pace is None:
            yield f"{what} has several flows and no pace: say Freely() or InTurn({', '.join(plan.ends())})"
        elif plan.pace is not None:
            yield from _pace(what, plan.pace, plan.ends())
    for stage in stages:
        if stage.kind is not Kind.MERGE:
            continue
        what = f"merge {stage.name!r} of {_where(stage, owner)}"
        if stage.pace is None:
            yield f"{what} has no pace: say Freely() or InTurn({', '.join(stage.sides)})"
        else:
            yield from _pace(what, stage.pace, dict(zip(stage.sides, stage.inputs, strict=True)))


def _pace(what: str, pace: Pace, ends: dict[str, Flow[Any]]) -> Iterator[str]:
    if not isinstance(pace, InTurn):
        return
    yield from (f"{what}: {problem}" for problem in pace.problems())
    if pace.sides() != frozenset(ends):
        yield f"{what}: InTurn is between {sorted(pace.sides())}, but the flows are {sorted(ends)}"
        return
    for side, share in pace.shares:
        if isinstance(share, AgentSteps) and not _has_rows(item_type(ends[side])):
            yield (
                f"{what}: {side!r} is paced in agent steps, but its items ({type_name(item_type(ends[side]))}) have no "
                "`rows`: it would earn no turn for any input; end it with a stage that counts, such as Insert"
            )
    for side, end in ends.items():
        for stage in _region(end):
            if stage.kind is Kind.GATHER and not getattr(stage.operator, "at_most_one", False):
                yield (
                    f"{what}: stage {stage.name!r} of side {side!r} may give several items for one, which breaks the "
                    "ratio; put it before the fork or queue, or declare at_most_one on its operator"
                )
    yield from _fork_ratio(what, pace, ends)


def _has_rows(hint: Any) -> bool:
    return hint is Any or hasattr(hint, "rows") or "rows" in getattr(hint, "__annotations__", {})


def _region(end: Flow[Any]) -> list[Flow[Any]]:
    """The stages between a side's end and where the pace holds it."""
    if end.kind in (Kind.BRANCH, Kind.QUEUE):
        return []
    return [end, *(stage for before in end.inputs for stage in _region(before))]


def _fork_ratio(what: str, pace: InTurn, ends: dict[str, Flow[Any]]) -> Iterator[str]:
    """Branches of one waiting fork bring the same number of items: any other ratio between them blocks in the end."""
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
            shown = ", ".join(f"{side}={share}" for side, share in sides.items())
            yield (
                f"{what}: the sides of InTurn({shown}) are branches of one fork, which bring item for item the same: "
                "it would block for every input; give equal shares, or drop_oldest on the fork"
            )


def _learners(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    updating: dict[Any, list[str]] = {}
    for stage in stages:
        if (learner := getattr(stage.operator, "updates", None)) is not None:
            updating.setdefault(learner, []).append(f"{stage.name!r} of {_where(stage, owner)}")
    for learner, where in updating.items():
        if len(where) > 1:
            yield f"learner {learner!r} is updated by {' and by '.join(where)}: one learner is updated by one stage"


def _rounds(plan: Together) -> Iterator[str]:
    for one in plan.plans:
        own = [stage for stage in one.stages() if id(stage) not in plan.shared]
        if one.waits_for_rounds and not any(getattr(stage.operator, "publishes", False) for stage in own):
            yield (
                f"plan {one.name!r} is on-policy but never publishes: from its second update on its rows would all be "
                "too old; end it with Publish(learner)"
            )
        strict = [s for s in own if getattr(s.operator, "max_staleness", None) == 0]
        if plan.rounds.overlap and strict:
            yield (
                f"rounds overlap learning, so rows are a version old, but stage {strict[0].name!r} of plan {one.name!r} "
                "has max_staleness 0; give it 1 or more, or choose rollouts.pace=lockstep"
            )
