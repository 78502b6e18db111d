"""Plans: flows that belong together under one name, and how several plans share one stream of experience."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from marlflow.base.errors import PlanInvalid
from marlflow.flow.flow import Flow, Full, Kind
from marlflow.flow.pace import Pace


@dataclass(frozen=True)
class Plan:
    """One policy's dataflow: the flow whose items are its reports, those that run beside it, and their pace."""

    name: str
    output: Flow[Any]
    also: Mapping[str, Flow[Any]] = field(default_factory=dict)
    pace: Pace | None = None
    waits_for_rounds: bool = False
    """True for on-policy plans: in lockstep, the next round begins when this plan has come to rest."""
    title: str = ""
    """What the plan does, where `name` says for whom: the algorithm's name."""
    unmet: tuple[str, ...] = ()
    """What could not be made of it as it was wished: `check()` tells."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "also", MappingProxyType(dict(self.also)))

    def ends(self) -> dict[str, Flow[Any]]:
        """Its flows by name, the output last."""
        return {**self.also, "output": self.output}

    def stages(self) -> Iterator[Flow[Any]]:
        """Every stage of the plan and of what it is fed by, sources first, each once."""
        seen: set[int] = set()
        for end in self.ends().values():
            for stage in end.upstream():
                if id(stage) not in seen:
                    seen.add(id(stage))
                    yield stage

    def check(self) -> None:
        """Raises PlanInvalid with all problems at once; returns if the plan can run."""
        from marlflow.flow.check import problems

        if found := problems(self):
            raise PlanInvalid(found)

    def mermaid(self) -> str:
        """The plan as a Mermaid flowchart."""
        from marlflow.flow.draw import mermaid

        return mermaid(self)

    def __str__(self) -> str:
        from marlflow.flow.draw import tree

        return tree(self)


@dataclass(frozen=True)
class Rounds:
    """How the shared source proceeds beside the plans that wait for rounds.

    `lockstep`: a round begins when every such plan has come to rest. `overlap`: a round begins
    when every such plan has taken up what it was given; it is collected while they learn, one version behind.
    `asynchronous`: as lockstep, but a round is only a part of what the source has under way; the rest goes on.
    """

    pace: Literal["lockstep", "overlap", "asynchronous"] = "lockstep"

    def __str__(self) -> str:
        return self.pace


@dataclass(frozen=True)
class Together:
    """Several plans over one shared stream; itself a plan to print, draw, check and run."""

    source: Flow[Any]
    plans: tuple[Plan, ...]
    rounds: Rounds
    shared: frozenset[int]
    """The identities of the stages that belong to no single plan: the source, and what divides its stream."""

    @property
    def name(self) -> str:
        """What the shared stages are filed under."""
        return "rollouts"

    def check(self) -> None:
        """Raises PlanInvalid with all problems at once; returns if the plans can run together."""
        from marlflow.flow.check import problems

        if found := problems(self):
            raise PlanInvalid(found)

    def mermaid(self) -> str:
        """The plans as one Mermaid flowchart."""
        from marlflow.flow.draw import mermaid

        return mermaid(self)

    def __str__(self) -> str:
        from marlflow.flow.draw import tree

        return tree(self)


AnyPlan = Plan | Together


@dataclass(frozen=True, slots=True)
class Feed:
    """How a plan takes its part of the shared stream: its queue's capacity in items, and what happens when full."""

    capacity: int | None
    full: Full = "wait"


def together(
    experience: Flow[Any],
    by: Callable[[Any], Any],
    plans: Mapping[str, Callable[[Flow[Any]], Plan]],
    feeds: Mapping[str, Feed],
    rounds: Rounds = Rounds(),
) -> Together:
    """Divides `experience` among `plans` with the split operator `by`, each behind a queue of its own.

    Each plan is built from its own flow and filed under its key, so every plan reports under its policy's name.
    """
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
    """The plans of several together, or the one plan."""
    return plan.plans if isinstance(plan, Together) else (plan,)


def owners(plan: AnyPlan) -> dict[int, str]:
    """The name of the plan that each stage belongs to, by the stage's identity."""
    shared = plan.shared if isinstance(plan, Together) else frozenset()
    named = dict.fromkeys(shared, plan.name)
    for one in plans_of(plan):
        for stage in one.stages():
            named.setdefault(id(stage), one.name)
    return named


def all_stages(plan: AnyPlan) -> list[Flow[Any]]:
    """Every stage of every plan, each after those that feed it, each once."""
    found: dict[int, Flow[Any]] = {}
    if isinstance(plan, Together):
        found.update((id(stage), stage) for stage in plan.source.upstream())
    for one in plans_of(plan):
        found.update((id(stage), stage) for stage in one.stages() if id(stage) not in found)
    return list(found.values())


def consumers(stages: list[Flow[Any]]) -> dict[int, list[Flow[Any]]]:
    """Who takes the items of each stage, by the stage's identity."""
    taken: dict[int, list[Flow[Any]]] = {id(stage): [] for stage in stages}
    for stage in stages:
        for before in stage.inputs:
            taken[id(before)].append(stage)
    return taken


def producers(flow: Flow[Any]) -> list[tuple[Flow[Any], Any]]:
    """The stages that make the items of a flow, through forks, queues and merges, each with the type it gives."""
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
    if flow.handed_on in flow.sides:
        return producers(flow.inputs[flow.sides.index(flow.handed_on)])
    return [found for before in flow.inputs for found in producers(before)]


def head_stages(end: Flow[Any]) -> list[Flow[Any]]:
    """The stages at which a pace holds a side back: sources, and those just behind a fork, a split or a queue."""
    heads: dict[int, Flow[Any]] = {}
    todo = [end]
    while todo:
        stage = todo.pop()
        if stage.kind in (Kind.BRANCH, Kind.QUEUE, Kind.SOURCE):
            heads[id(stage)] = stage
        todo.extend(() if id(stage) in heads else stage.inputs)
    return list(heads.values())
