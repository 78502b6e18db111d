"""Checks of a plan and its paces before it runs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any, get_args, get_origin

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.pace import AgentSteps, InTurn, Pace
from marlflow.flow.plan import (
    AnyPlan,
    Plan,
    RoundPace,
    Together,
    all_stages,
    consumers,
    head_stages,
    owners,
    paces_of,
    plans_of,
    producers,
)
from marlflow.flow.protocols import Located, call_problem
from marlflow.flow.traits import bridge, fits, options, type_name


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


def problems(plan: AnyPlan) -> list[str]:
    """Return one sentence per problem of the plan."""
    plans, stages, owner = plans_of(plan), all_stages(plan), owners(plan)
    sentences = [f"plan {member.name!r}: {problem}" for member in plans for problem in member.unmet]
    sentences += [*_names(plans, stages, owner), *_calls(stages, owner), *_neighbors(stages, owner)]
    sentences += [*_capacities(stages, owner), *_uses(plan, stages, owner), *_learners(stages, owner)]
    sentences += pace_problems(plans, stages, owner)
    if isinstance(plan, Together):
        if any(member.name == plan.name for member in plans):
            sentences.append(f"a plan is named {plan.name!r}, as what all plans share is: give it another name")
        sentences += _rounds(plan)
    return sentences


def _where(stage: Flow[Any], owner: dict[int, str]) -> str:
    return f"plan {owner[id(stage)]!r}"


def _names(plans: tuple[Plan, ...], stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for name, count in Counter(plan.name for plan in plans).items():
        if count > 1:
            yield f"{count} plans are named {name!r}: give each a name of its own"
    named = Counter((owner[id(stage)], stage.name) for stage in stages if stage.kind is not Kind.BRANCH)
    for (plan, name), count in named.items():
        if count > 1:
            yield f"plan {plan!r} has {count} stages named {name!r}: tell them apart with name=..."


def _calls(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for stage in stages:
        if stage.call is None:
            continue
        if stage.kind in (Kind.SOURCE, Kind.THEN, Kind.SPLIT) and (problem := call_problem(stage.call)):
            yield f"stage {stage.name!r} of {_where(stage, owner)} {problem}"
        elif stage.kind is Kind.GATHER and not callable(getattr(stage.call.operator, "add", None)):
            yield (
                f"stage {stage.name!r} of {_where(stage, owner)} gathers with {stage.call.operator!r}, which has no "
                "method `add(item)`"
            )


def _neighbors(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for stage in stages:
        if stage.kind not in (Kind.THEN, Kind.GATHER, Kind.SPLIT):
            continue
        expected = stage.traits.accepts
        for before, got in producers(stage.inputs[0]):
            if fits(got, expected):
                continue
            differ = (
                f"stage {stage.name!r} of {_where(stage, owner)} expects {type_name(expected)}, but {before.name!r} "
                f"gives {type_name(got)}"
            )
            if _gets(before, expected):
                same = type_name(expected)
                yield f"{differ}, by its annotation; if it returns the {same} that it gets, annotate it so"
            else:
                suggestion = bridge(got, expected)
                yield f"{differ}; put {suggestion} between them" if suggestion else differ


def _gets(stage: Flow[Any], expected: Any) -> bool:
    if stage.kind is not Kind.THEN:
        return False
    return any(given is not Any and fits(given, expected) for _, given in producers(stage.inputs[0]))


def _capacities(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for stage in stages:
        if stage.kind not in (Kind.FORK, Kind.QUEUE):
            continue
        subject = f"{stage.kind.value} {stage.name!r} of {_where(stage, owner)}"
        capacity: Any = stage.capacity
        if capacity is None:
            yield f"{subject} has no capacity: say how many items it may hold"
        elif not isinstance(capacity, Integral):
            yield f"{subject} has a capacity of {capacity!r}, which is no whole number"
        elif capacity < 1:
            yield f"{subject} has a capacity of {capacity}: it would block for every input; give at least 1"
        if stage.full not in ("wait", "drop_oldest"):
            yield f"{subject} is to {stage.full!r} when full; choose 'wait' or 'drop_oldest'"


def _uses(plan: AnyPlan, stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    consumers_of = consumers(stages)
    ends = Counter(id(end) for member in plans_of(plan) for end in member.ends().values())
    for stage in stages:
        if stage.kind in (Kind.FORK, Kind.SPLIT):
            yield from _branch_uses(stage, consumers_of[id(stage)], owner)
            continue
        uses = len(consumers_of[id(stage)]) + ends[id(stage)]
        if uses > 1:
            yield (
                f"the flow after {stage.name!r} of {_where(stage, owner)} is taken {uses} times: "
                f"give each its own with .fork({uses}, capacity=...)"
            )
        elif uses == 0:
            yield f"the flow after {stage.name!r} of {_where(stage, owner)} is used by no stage; give it to a plan"


def _branch_uses(stage: Flow[Any], branches: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    used = Counter(branch.branch for branch in branches)
    for key in stage.branches:
        if used[key] == 0:
            yield (
                f"branch {key!r} of {stage.name!r} in {_where(stage, owner)} is used by no stage: it would fill up "
                "and block for every input; use it, or make one branch fewer"
            )
        elif used[key] > 1:
            yield (
                f"branch {key!r} of {stage.name!r} in {_where(stage, owner)} is taken {used[key]} times: "
                f"give each its own with .fork({used[key]}, capacity=...)"
            )


def _learners(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    updating: dict[str, list[Flow[Any]]] = {}
    for stage in stages:
        if stage.traits.updates and isinstance(stage.at, Located):
            updating.setdefault(stage.at.name, []).append(stage)
    for learner, updates in updating.items():
        for stage in updates:
            yield from _unknown_groups(learner, stage, owner)
        where = " and by ".join(f"{stage.name!r} of {_where(stage, owner)}" for stage in updates)
        groups = Counter(group for stage in updates for group in set(stage.traits.groups or ()))
        if len(updates) > 1 and any(stage.traits.groups is None for stage in updates):
            advice = "; or say which loss groups each trains, by Learn(groups=...)" if groups else ""
            yield f"learner {learner!r} is updated by {where}: one learner is updated by one stage{advice}"
        elif shared := sorted(group for group, count in groups.items() if count > 1):
            names = " and ".join(map(repr, shared))
            yield f"learner {learner!r} is updated by {where}, of which several train {names}: give each its own groups"
        elif len({owner[id(stage)] for stage in updates}) > 1:
            yield f"learner {learner!r} is updated by {where}: one learner is updated by one plan"


def _unknown_groups(learner: str, stage: Flow[Any], owner: dict[int, str]) -> Iterator[str]:
    groups, known = stage.traits.groups, getattr(stage.at, "loss_groups", {})
    subject = f"stage {stage.name!r} of {_where(stage, owner)}"
    if groups == ():
        yield f"{subject} trains no loss group: leave groups out, or name some"
    if unknown := sorted({*(groups or ())} - {*known}):
        has = f"has {', '.join(known)}" if known else "declares none: name them in Capabilities(loss_groups=...)"
        yield f"{subject} trains the loss groups {', '.join(unknown)} of learner {learner!r}, which {has}"


def _rounds(plan: Together) -> Iterator[str]:
    if plan.rounds not in (paces := get_args(RoundPace)):
        yield f"rounds must be one of {', '.join(paces)}, not {plan.rounds!r}"
    for member in plan.plans:
        own_stages = [stage for stage in member.stages() if id(stage) not in plan.shared]
        if member.waits_for_rounds:
            yield from _on_policy(member, own_stages)
        strict = [stage for stage in own_stages if stage.traits.max_staleness == 0]
        if strict and not member.waits_for_rounds:
            yield (
                f"plan {member.name!r} takes no stale row (stage {strict[0].name!r} has max_staleness 0), but rounds "
                "do not wait for it: say Plan(..., waits_for_rounds=True)"
            )
        # Overlapping and asynchronous rounds sample with weights at least one version old.
        if plan.rounds != "lockstep" and strict:
            why = "rounds overlap learning" if plan.rounds == "overlap" else "rounds do not wait for learning"
            yield (
                f"{why}, so rows are a version old, but stage {strict[0].name!r} of plan "
                f"{member.name!r} has max_staleness 0; give it 1 or more, or choose rollouts.pace=lockstep"
            )


def _on_policy(plan: Plan, own_stages: list[Flow[Any]]) -> Iterator[str]:
    if not any(stage.traits.publishes for stage in own_stages):
        yield (
            f"plan {plan.name!r} is on-policy but never publishes: from its second update on its rows would all be "
            "too old; end it with .then(Publish(), at=learner)"
        )
    # An unpaced source never idles, so a plan that has one never comes to rest.
    paced = {id(stage) for pace, ends in paces_of(plan) if isinstance(pace, InTurn) for stage in regions(ends)}
    for stage in own_stages:
        if stage.kind is Kind.SOURCE and id(stage) not in paced:
            yield (
                f"plan {plan.name!r} waits for rounds, but its source {stage.name!r} runs freely: the plan would never "
                "come to rest, and no round begin; give them a ratio with InTurn"
            )
