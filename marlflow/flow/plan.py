"""Plans: the dataflow of one policy, or of several over one shared stream of experience."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from marlflow.base.errors import PlanInvalid
from marlflow.flow.flow import Flow, Full, Kind
from marlflow.flow.pace import AgentSteps, InTurn, Pace


class Drawn:
    """Base class of plans: they are checked, and drawn."""

    def check(self) -> None:
        """Raise PlanInvalid if there are problems."""
        from marlflow.flow.check import problems

        if sentences := problems(cast(AnyPlan, self)):
            raise PlanInvalid(sentences)

    def mermaid(self) -> str:
        """Render as a Mermaid flowchart."""
        from marlflow.flow.draw import mermaid

        return mermaid(cast(AnyPlan, self))

    def __str__(self) -> str:
        from marlflow.flow.draw import tree

        return tree(cast(AnyPlan, self))


@dataclass(frozen=True)
class Plan(Drawn):
    """One policy's dataflow: its `output` (reports), further flows (`also`), and the pace between all of them."""

    name: str
    output: Flow[Any]
    also: Mapping[str, Flow[Any]] = field(default_factory=dict)
    pace: Pace | None = None
    waits_for_rounds: bool = False
    """True for on-policy plans: in lockstep, the next round starts only when no item is left in this plan."""
    title: str = ""
    """The algorithm's name; `name` is the policy's."""
    unmet: tuple[str, ...] = ()
    """Placement requests that could not be satisfied; `check()` reports them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "also", MappingProxyType(dict(self.also)))

    def ends(self) -> dict[str, Flow[Any]]:
        """Return the flows by name, the output last."""
        return {**self.also, "output": self.output}

    def stages(self) -> Iterator[Flow[Any]]:
        """Yield every stage once, topologically sorted."""
        seen: set[int] = set()
        for end in self.ends().values():
            for stage in end.upstream():
                if id(stage) not in seen:
                    seen.add(id(stage))
                    yield stage


RoundPace: TypeAlias = Literal["lockstep", "overlap", "asynchronous"]
"""When the shared source starts a round.

`lockstep`: when every plan with `waits_for_rounds` is at rest (has no items left). `overlap`: when each of them has
taken its input, so rows are one version old. `asynchronous`: as lockstep, but a round has only the results that are
ready, and other workers continue.
"""


@dataclass(frozen=True, slots=True)
class WorkBetweenRounds:
    """The work of the driver between rounds. It is drawn with the plans of a Together; the executor does not run it.

    Each of `rows` has a name, the names of its steps in order, and when it is done.
    """

    name: str
    title: str
    rows: tuple[tuple[str, tuple[str, ...], str], ...]


@dataclass(frozen=True)
class Together(Drawn):
    """Several plans over one shared stream, usable as a plan."""

    source: Flow[Any]
    plans: tuple[Plan, ...]
    rounds: RoundPace
    shared: frozenset[int]
    """Identities of the stages that belong to no single plan: the source, and the split of its stream."""
    between_rounds: tuple[WorkBetweenRounds, ...] = ()

    @property
    def name(self) -> str:
        return "rollouts"


AnyPlan = Plan | Together


@dataclass(frozen=True, slots=True)
class Feed:
    """A plan's queue on the shared stream, of `capacity` items."""

    capacity: int | None
    full: Full = "wait"


def together(
    experience: Flow[Any],
    by: Callable[[Any], Any],
    plans: Mapping[str, Callable[[Flow[Any]], Plan]],
    feeds: Mapping[str, Feed],
    rounds: RoundPace = "lockstep",
) -> Together:
    """Split `experience` by operator `by` among `plans`, each with its queue and named by its key."""
    keys: tuple[Hashable, ...] = tuple(plans)
    branches = experience.split(by, keys)
    built, shared = [], {id(stage) for stage in experience.upstream()}
    for key, build in plans.items():
        branch = branches[key]
        shared |= {id(branch), *(id(stage) for stage in branch.inputs)}
        plan = build(branch.queue(feeds[key].capacity, feeds[key].full))
        built.append(replace(plan, name=key, title=plan.title or plan.name))
    return Together(experience, tuple(built), rounds, frozenset(shared))


def plans_of(plan: AnyPlan) -> tuple[Plan, ...]:
    """Return a Together's plans, or the one plan."""
    return plan.plans if isinstance(plan, Together) else (plan,)


def owners(plan: AnyPlan) -> dict[int, str]:
    """Return each stage's plan name, by the stage's identity."""
    shared = plan.shared if isinstance(plan, Together) else frozenset()
    named = dict.fromkeys(shared, plan.name)
    for member in plans_of(plan):
        for stage in member.stages():
            named.setdefault(id(stage), member.name)
    return named


def all_stages(plan: AnyPlan) -> list[Flow[Any]]:
    """Return every plan's stages, once each, topologically sorted."""
    stages: dict[int, Flow[Any]] = {}
    if isinstance(plan, Together):
        stages.update((id(stage), stage) for stage in plan.source.upstream())
    for member in plans_of(plan):
        stages.update((id(stage), stage) for stage in member.stages() if id(stage) not in stages)
    return list(stages.values())


def consumers(stages: list[Flow[Any]]) -> dict[int, list[Flow[Any]]]:
    """Return each stage's consumers, by the stage's identity."""
    taken: dict[int, list[Flow[Any]]] = {id(stage): [] for stage in stages}
    for stage in stages:
        for before in stage.inputs:
            taken[id(before)].append(stage)
    return taken


def producers(flow: Flow[Any]) -> list[tuple[Flow[Any], Any]]:
    """Return the stages that make a flow's items, through forks, queues and merges, with item types."""
    if flow.gives is not None:
        return [(flow, flow.gives)]
    if flow.kind in (Kind.SOURCE, Kind.THEN, Kind.GATHER):
        emits = flow.traits.emits
        if inspect.isfunction(emits):
            return [(flow, emits(came)) for _, came in producers(flow.inputs[0])]
        return [(flow, emits)]
    if flow.kind is Kind.BRANCH and flow.inputs[0].kind is Kind.SPLIT:
        split = flow.inputs[0]
        return [(split, (split.traits.routes or {}).get(flow.branch, split.traits.emits))]
    if flow.emitted_side in flow.sides:
        return producers(flow.inputs[flow.sides.index(flow.emitted_side)])
    return [producer for before in flow.inputs for producer in producers(before)]


def head_stages(end: Flow[Any]) -> list[Flow[Any]]:
    """Return the stages where a pace holds a side back: sources, and stages after a fork, split or queue."""
    heads: dict[int, Flow[Any]] = {}
    todo = [end]
    while todo:
        # Depth first, stopping at each head.
        stage = todo.pop()
        if stage.kind in (Kind.BRANCH, Kind.QUEUE, Kind.SOURCE):
            heads[id(stage)] = stage
        todo.extend(() if id(stage) in heads else stage.inputs)
    return list(heads.values())


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


def paces_of(plan: Plan) -> Iterator[tuple[Pace | None, Mapping[str, Flow[Any]]]]:
    """Yield the paces of the plan and its merges, with their sides."""
    yield plan.pace, plan.ends()
    for stage in plan.stages():
        if stage.kind is Kind.MERGE:
            yield stage.pace, dict(zip(stage.sides, stage.inputs, strict=True))


def _ratios(plan: Plan) -> Iterator[tuple[Flow[object], AgentSteps, list[Flow[object]]]]:
    for pace, sides in paces_of(plan):
        for name, share in pace.shares if isinstance(pace, InTurn) else ():
            if isinstance(share, AgentSteps):
                yield sides[name], share, [side for other, side in sides.items() if other != name]
