"""From an experiment and its parts to one plan: rounds of experience, divided among the plans of its learners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from marlflow.base.batch import Batch
from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.base.items import Fragment
from marlflow.config.experiment import Experiment
from marlflow.config.learners import subject_of
from marlflow.env.frames import raised
from marlflow.flow import Feed, Flow, Place, Plan, Rounds, Together, source, together
from marlflow.runtime.inline import InlinePlace
from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.sharding import ON_WORKERS
from marlflow.runtime.spec import LearnerSpec, RunSpec
from marlflow.sampling.protocol import Drain, Request, Round
from marlflow.stages import ByPolicy, Collect, CollectNext

ROUNDS_IN_QUEUE = 2


@dataclass(frozen=True, slots=True)
class RoundHooks:
    """Where the driver takes part in the stream: what to collect with next, and what to do with each round."""

    next_request: Callable[[], Request | Drain | None]
    round_made: Callable[[Round], Round | Awaitable[Round]]


@dataclass(frozen=True, slots=True)
class Count:
    """Counts what came of a round; when it is time, evaluates and reports."""

    desk: RoundHooks = field(repr=False)

    def __call__(self, round: Round) -> Round | Awaitable[Round]:
        """The round, unchanged."""
        return self.desk.round_made(round)


def build_plan(experiment: Experiment, spec: RunSpec, parts: RunComponents, desk: RoundHooks) -> Together:
    """The plan of the whole run."""
    builders: dict[str, Callable[[Flow[Fragment]], Plan]] = {}
    for name, learner in spec.learners.items():
        builders[name] = partial(learner_plan, spec=learner, parts=parts)
    kind = CollectNext if experiment.rollouts.pace == "asynchronous" else Collect
    collected = source(kind(parts.workers, desk.next_request)).then(Count(desk))
    return together(
        collected,
        by=divided_among(spec.learners.values()),
        plans=builders,
        feeds={name: Feed(_queue_fragments(experiment, spec, name)) for name in spec.learners},
        rounds=Rounds(experiment.rollouts.pace),
    )


def divided_among(learners: Collection[LearnerSpec]) -> ByPolicy:
    """What divides each round among the plans of `learners`."""
    joint = {one.name: one.members for one in learners if one.is_joint}
    return ByPolicy(joint, {one.members[0]: one.name for one in learners if not one.is_joint})


def learner_plan(experience: Flow[Fragment], spec: LearnerSpec, parts: RunComponents) -> Plan:
    """The plan of one learner, its stages where they are to run; raises ConfigInvalid if it cannot be made."""
    learner = parts.learners[spec.name]
    try:
        plan = spec.algorithm.plan(experience, learner, [parts.replays[name] for name in spec.replays])
    except MarlflowError:
        raise
    except Exception as error:
        text = f"{subject_of(spec)}: its plan cannot be made: {raised(error)}"
        raise ConfigInvalid([text]) from error
    return spec.relocated_stages.applied(plan, experience, learner, parts.driver) if spec.stages else plan


def _queue_fragments(experiment: Experiment, spec: RunSpec, name: str) -> int:
    return experiment.learner(name).queue_fragments or ROUNDS_IN_QUEUE * spec.num_workers


@dataclass(slots=True)
class _Nobody:
    """Stands where a learner, a replay or workers will be, so that a plan can be drawn and checked without them."""

    name: str
    place: Place | None
    trains_on: type = Batch


def drawn_plan(experiment: Experiment, spec: RunSpec) -> Together:
    """The plan that `build_plan` would give, to look at: nothing is set up, and it cannot run."""
    nobody: Any = _Nobody
    learners, replays = {}, {}
    for name, one in spec.learners.items():
        place = InlinePlace(ON_WORKERS if one.on_workers else f"learner {name}")
        learners[name] = nobody(name, place, one.algorithm.capabilities.trains_on)
        for own in one.replays:
            replays[own] = nobody(own, InlinePlace(f"replay {own}") if one.replays_apart else place)
    parts = RunComponents(nobody("workers", None), learners, replays)
    return build_plan(experiment, spec, parts, RoundHooks(lambda: None, _keep))


def _keep(round: Round) -> Round:
    return round
