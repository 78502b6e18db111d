"""Lower bound on the agent steps before a plan's first update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.pace import AgentSteps, InTurn, Pace
from marlflow.flow.plan import Plan


def agent_steps_of_first_update(plan: Plan) -> int:
    """Return a lower bound on the agent steps before `plan` first updates a learner; 0 if unknown."""
    updating = [stage for stage in plan.stages() if stage.traits.updates]
    return min((_Needs(plan).steps_before(stage) for stage in updating), default=0)


class _Needs:
    def __init__(self, plan: Plan) -> None:
        self._ratios = list(_ratios(plan))

    def steps_before(self, stage: Flow[object]) -> int:
        # A lower bound: operators may hold back more rows than they declare.
        by_input = [self.steps_before(feeder) for feeder in _emitting_inputs(stage)]
        gathered = stage.traits.agent_steps if stage.kind is Kind.GATHER else 0
        return max(min(by_input, default=0), gathered, *self._earned(stage), 0)

    def _earned(self, stage: Flow[object]) -> Iterator[int]:
        for leader, share, followers in self._ratios:
            leading = set(map(id, leader.upstream()))
            if id(stage) not in leading and any(id(stage) in map(id, side.upstream()) for side in followers):
                yield max(share.starts + share.per, self.steps_before(leader))


def _emitting_inputs(stage: Flow[object]) -> list[Flow[object]]:
    if stage.emitted_side is None:
        return list(stage.inputs)
    return [feeder for side, feeder in zip(stage.sides, stage.inputs, strict=True) if side == stage.emitted_side]


def _ratios(plan: Plan) -> Iterator[tuple[Flow[object], AgentSteps, list[Flow[object]]]]:
    paced: list[tuple[Pace | None, Mapping[str, Flow[object]]]] = [(plan.pace, plan.ends())]
    merges = (stage for stage in plan.stages() if stage.kind is Kind.MERGE)
    paced += [(stage.pace, dict(zip(stage.sides, stage.inputs, strict=True))) for stage in merges]
    for pace, sides in paced:
        for name, share in pace.shares if isinstance(pace, InTurn) else ():
            if isinstance(share, AgentSteps):
                yield sides[name], share, [side for other, side in sides.items() if other != name]
