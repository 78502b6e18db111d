"""Checks of a plan before it runs; `check_pace` checks its paces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from marlflow.flow.check_pace import pace_problems, paces_of, regions
from marlflow.flow.flow import Flow, Kind
from marlflow.flow.item_types import bridge, fits, type_name
from marlflow.flow.pace import InTurn
from marlflow.flow.plan import AnyPlan, Plan, Together, all_stages, consumers, owners, plans_of, producers
from marlflow.flow.protocols import Located, call_problem


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
        if stage.kind in (Kind.SOURCE, Kind.THEN) and stage.call is not None and (problem := call_problem(stage.call)):
            yield f"stage {stage.name!r} of {_where(stage, owner)} {problem}"


def _neighbors(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for stage in stages:
        if stage.kind not in (Kind.THEN, Kind.GATHER, Kind.SPLIT):
            continue
        expected = stage.traits.accepts
        for before, got in producers(stage.inputs[0]):
            if fits(got, expected):
                continue
            suggestion = bridge(got, expected)
            yield (
                f"stage {stage.name!r} of {_where(stage, owner)} expects {type_name(expected)}, but {before.name!r} "
                f"gives {type_name(got)}" + (f"; put {suggestion} between them" if suggestion else "")
            )


def _capacities(stages: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    for stage in stages:
        if stage.kind not in (Kind.FORK, Kind.QUEUE):
            continue
        subject = f"{stage.kind.value} {stage.name!r} of {_where(stage, owner)}"
        if stage.capacity is None:
            yield f"{subject} has no capacity: say how many items it may hold"
        elif stage.capacity < 1:
            yield f"{subject} has a capacity of {stage.capacity}: it would block for every input; give at least 1"
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
            yield f"the flow after {stage.name!r} of {_where(stage, owner)} is taken by nobody; give it to a plan"


def _branch_uses(stage: Flow[Any], branches: list[Flow[Any]], owner: dict[int, str]) -> Iterator[str]:
    used = Counter(branch.branch for branch in branches)
    for key in stage.branches:
        if used[key] == 0:
            yield (
                f"branch {key!r} of {stage.name!r} in {_where(stage, owner)} is taken by nobody: it would fill up "
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
        if plan.rounds.pace != "lockstep" and strict:
            why = "rounds overlap learning" if plan.rounds.pace == "overlap" else "rounds do not wait for learning"
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
