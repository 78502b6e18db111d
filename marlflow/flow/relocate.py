"""Stages of a plan moved: to where its experience is made, or to the driver.

The plan of an algorithm does not know of it. It is built once more for each place, over what stands for its learner and
its replay there, and from that the operators are taken: a stage computes with the weights of where it runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.operators import Place, emits, place_of
from marlflow.flow.plan import Plan, producers

Where: TypeAlias = Literal["learner", "worker", "driver"]
"""Beside the learner or the replay, where the plan has it; with the rollout workers; or on the driver."""


@dataclass(frozen=True, slots=True)
class RanAhead:
    """Stands in a plan for `operator`, which ran on each item before it came: hands it on, at the operator's place."""

    operator: Any = field(repr=False)
    emits: Any = field(repr=False)

    @property
    def place(self) -> Place | None:
        """Where the operator ran; it is asked for the times."""
        return place_of(self.operator)

    def __call__(self, item: Any) -> Any:
        """The item, unchanged."""
        return item


def relocated(plan: Plan, experience: Flow[Any], wishes: Mapping[str, Where], built: Mapping[Where, Plan]) -> Plan:
    """`plan` with the stages of `wishes`, by name, where they are wished; `built` is the same plan as built for there.

    Stages at "worker" come right behind `experience`, in the plan's order. If a wish cannot be met the plan stays as it
    is, and its `check()` says why.
    """
    stages = _own(plan, experience)
    if unmet := list(_problems(stages, experience, wishes)):
        return replace(plan, unmet=(*plan.unmet, *unmet))
    moved: dict[str, Any] = {}
    for where, there in built.items():
        own = _own(there, experience)
        moved |= {name: own[name].operator for name, wish in wishes.items() if wish == where}
    ahead = [stage for name, stage in stages.items() if wishes.get(name) == "worker"]
    return _rebuilt(plan, experience, ahead, moved)


def _own(plan: Plan, experience: Flow[Any]) -> dict[str, Flow[Any]]:
    """The plan's stages by name, without those that make its experience."""
    given = {id(stage) for stage in experience.upstream()}
    return {stage.name: stage for stage in plan.stages() if id(stage) not in given}


def _rebuilt(plan: Plan, experience: Flow[Any], ahead: list[Flow[Any]], moved: Mapping[str, Any]) -> Plan:
    """The plan with the stages `ahead` of all others, and the operators of those `moved` replaced."""
    given = _given(experience)
    behind = experience
    for stage in ahead:
        behind = replace(stage, inputs=(behind,), operator=RanAhead(moved[stage.name], given))
    again = {id(stage): stage for stage in experience.upstream()} | {id(experience): behind}
    for stage in plan.stages():  # each after those that feed it
        if id(stage) in again:
            continue
        inputs = tuple(again[id(before)] for before in stage.inputs)
        if stage in ahead:
            again[id(stage)] = again[id(stage.inputs[0])] = replace(inputs[0], gives=emits(stage.operator))
        else:
            again[id(stage)] = replace(stage, inputs=inputs, operator=moved.get(stage.name, stage.operator))
    return replace(plan, output=again[id(plan.output)], also={side: again[id(end)] for side, end in plan.also.items()})


def _given(experience: Flow[Any]) -> Any:
    """The type of its items."""
    return next((gives for _, gives in producers(experience)), Any)


# -- what cannot be ---------------------------------------------------------------------------------------------


def _problems(stages: Mapping[str, Flow[Any]], experience: Flow[Any], wishes: Mapping[str, Where]) -> Iterator[str]:
    for name, where in wishes.items():
        if name not in stages:
            near = difflib.get_close_matches(name, list(stages), n=1)
            known = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(stages)}"
            yield f"it has no stage {name!r} to run on the {where}; {known}"
        elif reason := _reason(stages[name], where, experience, wishes):
            yield f"stage {name!r} cannot run on the {where}: {reason}"


def _reason(stage: Flow[Any], where: Where, experience: Flow[Any], wishes: Mapping[str, Where]) -> str | None:
    """Why the stage cannot run there; None if it can."""
    operator = stage.operator
    if where == "learner" or (where == "driver" and place_of(operator) is None):
        return None
    if (learner := getattr(operator, "updates", None)) is not None:
        return f"it updates learner {learner!r}"
    if getattr(operator, "publishes", False):
        return "it hands out its learner's weights"
    if stage.kind is not Kind.THEN:
        return f"it is a {stage.kind.value}; only a then can be moved"
    if (stays := getattr(operator, "stays", None)) is not None:
        return str(stays)
    by_segment = getattr(operator, "by_segment", None)
    if by_segment is None:
        return "its operator does not say that it may run apart from its learner or replay (by_segment)"
    if where == "worker":
        return _reason_behind(stage, experience, wishes) if by_segment else "it needs whole batches, not fragments"
    return None


def _reason_behind(stage: Flow[Any], experience: Flow[Any], wishes: Mapping[str, Where]) -> str | None:
    """Why the stage cannot come ahead of those that stand between it and the experience."""
    gives_segments = getattr(stage.operator, "gives_segments", True)
    before = stage.inputs[0] if stage.inputs else None
    while before is not None and before is not experience:
        passes = before.kind is Kind.QUEUE or getattr(before.operator, "passes_segments", False)
        if before.kind is not Kind.QUEUE and not gives_segments and wishes.get(before.name) != "worker":
            return f"it gives no segments, but {before.name!r}, which it would come ahead of, takes them"
        if not passes and wishes.get(before.name) != "worker":
            return f"it stands behind {before.name!r}, which may change what it needs: move that too"
        before = before.inputs[0] if before.inputs else None
    return None if before is experience else "its items do not come from the workers"
