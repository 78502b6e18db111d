"""Relocation of stages to the rollout workers or the driver, with a substitute for their learner or replay."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.plan import Plan, producers
from marlflow.flow.protocols import Located, StageCall
from marlflow.flow.traits import Traits

Where: TypeAlias = Literal["learner", "worker", "driver"]
"""At the learner or replay, as the plan says; on the rollout workers; or on the driver."""

MakeSubstitute: TypeAlias = Callable[[Any, Where], Located]
"""Makes the substitute, on the worker or driver, for a stage's learner or replay (None: the stage has none)."""


def relocated(plan: Plan, experience: Flow[Any], wishes: Mapping[str, Where], make_substitute: MakeSubstitute) -> Plan:
    """Return `plan` with the stages in `wishes` moved; stages at "worker" come directly after `experience`.

    If a wish cannot be met, the plan is unchanged and its `check()` reports why.
    """
    upstream = {id(stage) for stage in experience.upstream()}
    stages = {stage.name: stage for stage in plan.stages() if id(stage) not in upstream}
    if unmet := list(_problems(stages, experience, wishes)):
        return replace(plan, unmet=(*plan.unmet, *unmet))
    on_workers = [stage for name, stage in stages.items() if wishes.get(name) == "worker"]
    on_driver = [stage for name, stage in stages.items() if wishes.get(name) == "driver"]
    return _rebuilt(plan, experience, on_workers, on_driver, make_substitute)


def _rebuilt(
    plan: Plan,
    experience: Flow[Any],
    on_workers: list[Flow[Any]],
    on_driver: list[Flow[Any]],
    make_substitute: MakeSubstitute,
) -> Plan:
    input_traits = Traits(accepts=Any, emits=next((gives for _, gives in producers(experience)), Any))
    last = experience
    for stage in on_workers:
        worker_call = StageCall(_identity, make_substitute(stage.at, "worker"), input_traits, passes_at=False)
        last = replace(stage, inputs=(last,), call=worker_call)
    rebuilt = {id(stage): stage for stage in experience.upstream()} | {id(experience): last}
    for stage in plan.stages():
        if id(stage) in rebuilt:
            continue
        inputs = tuple(rebuilt[id(before)] for before in stage.inputs)
        if stage in on_workers:
            # Skip the stage here: it already ran on the workers, so its input has its output type.
            rebuilt[id(stage)] = rebuilt[id(stage.inputs[0])] = replace(inputs[0], gives=stage.traits.emits)
            continue
        moved = replace(stage, inputs=inputs)
        if stage in on_driver and stage.call is not None and stage.at is not None:
            moved = replace(moved, call=replace(stage.call, at=make_substitute(stage.at, "driver")))
        rebuilt[id(stage)] = moved
    return replace(
        plan, output=rebuilt[id(plan.output)], also={side: rebuilt[id(end)] for side, end in plan.also.items()}
    )


def _identity(item: Any) -> Any:
    return item


# -- what cannot be ---------------------------------------------------------------------------------------------


def _problems(stages: Mapping[str, Flow[Any]], experience: Flow[Any], wishes: Mapping[str, Where]) -> Iterator[str]:
    for name, where in wishes.items():
        if name not in stages:
            near = difflib.get_close_matches(name, list(stages), n=1)
            known = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(stages)}"
            yield f"it has no stage {name!r} to run on the {where}; {known}"
        elif reason := _problem(stages[name], where, experience, wishes):
            yield f"stage {name!r} cannot run on the {where}: {reason}"


def _problem(stage: Flow[Any], where: Where, experience: Flow[Any], wishes: Mapping[str, Where]) -> str | None:
    traits = stage.traits
    if where == "learner" or (where == "driver" and stage.place is None):
        return None
    if traits.updates and isinstance(stage.at, Located):
        return f"it updates learner {stage.at.name!r}"
    if traits.publishes:
        return "it hands out its learner's weights"
    if stage.kind is not Kind.THEN:
        return f"it is a {stage.kind.value}; only a then can be moved"
    if traits.unmovable_because is not None:
        return traits.unmovable_because
    if traits.movable is None:
        return "its operator does not say that it may run apart from its learner or replay (Traits.movable)"
    if where == "worker":
        by_fragment = traits.movable == "fragments"
        return _upstream_problem(stage, experience, wishes) if by_fragment else "it needs whole batches, not fragments"
    return None


def _upstream_problem(stage: Flow[Any], experience: Flow[Any], wishes: Mapping[str, Where]) -> str | None:
    # Every stage between the experience and this one must move too, or leave segments intact.
    before = stage.inputs[0] if stage.inputs else None
    while before is not None and before is not experience:
        passes = before.kind is Kind.QUEUE or before.traits.keeps_segments
        if before.kind is not Kind.QUEUE and not stage.traits.emits_segments and wishes.get(before.name) != "worker":
            return f"it gives no segments, but {before.name!r}, which it would come ahead of, takes them"
        if not passes and wishes.get(before.name) != "worker":
            return f"it comes after {before.name!r}, which may change what it needs: move that too"
        before = before.inputs[0] if before.inputs else None
    return None if before is experience else "its items do not come from the workers"
