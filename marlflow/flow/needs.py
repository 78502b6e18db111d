"""What a plan has to be given before a stage of it has anything to do, as far as its operators and paces say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.pace import AgentSteps, InTurn, Pace
from marlflow.flow.plan import Plan


def agent_steps_of_first_update(plan: Plan) -> int:
    """The fewest agent steps that have to come before a stage of `plan` updates a learner.

    It is a lower bound: operators may keep rows for reasons that they do not declare. 0 if nothing is known.

    >>> from marlflow.flow import Traits, source
    >>> class Pairs:
    ...     traits = Traits(agent_steps=500)
    ...     def add(self, item): ...
    >>> experience = source(iter("ab").__next__)
    >>> agent_steps_of_first_update(Plan("ppo", experience.gather(Pairs()).then(len, traits=Traits(updates=True))))
    500
    """
    updating = [stage for stage in plan.stages() if stage.traits.updates]
    return min((_Needs(plan).before(stage) for stage in updating), default=0)


class _Needs:
    """The agent steps before each stage of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._ratios = list(_ratios(plan))

    def before(self, stage: Flow[object]) -> int:
        """The fewest agent steps that have to come before an item leaves `stage`."""
        of_inputs = [self.before(one) for one in _inputs(stage)]
        gathered = stage.traits.agent_steps if stage.kind is Kind.GATHER else 0
        return max(min(of_inputs, default=0), gathered, *self._earned(stage), 0)

    def _earned(self, stage: Flow[object]) -> Iterator[int]:
        """What the paces of the sides that `stage` is in ask for before the first turn."""
        for leader, share, followers in self._ratios:
            leading = set(map(id, leader.upstream()))
            if id(stage) not in leading and any(id(stage) in map(id, side.upstream()) for side in followers):
                yield max(share.starts + share.per, self.before(leader))


def _inputs(stage: Flow[object]) -> list[Flow[object]]:
    """The flows whose items come out of `stage`: of a merge, perhaps only one."""
    if stage.handed_on is None:
        return list(stage.inputs)
    return [one for side, one in zip(stage.sides, stage.inputs, strict=True) if side == stage.handed_on]


def _ratios(plan: Plan) -> Iterator[tuple[Flow[object], AgentSteps, list[Flow[object]]]]:
    """The paces of the plan that count agent steps: the side that is counted, how, and the sides that it leads."""
    paced: list[tuple[Pace | None, Mapping[str, Flow[object]]]] = [(plan.pace, plan.ends())]
    merges = (stage for stage in plan.stages() if stage.kind is Kind.MERGE)
    paced += [(stage.pace, dict(zip(stage.sides, stage.inputs, strict=True))) for stage in merges]
    for pace, sides in paced:
        for name, share in pace.shares if isinstance(pace, InTurn) else ():
            if isinstance(share, AgentSteps):
                yield sides[name], share, [side for other, side in sides.items() if other != name]
