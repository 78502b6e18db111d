"""Build the plan of a run: rounds of experience, divided among the plans of its learners, and its league."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from marlflow.algorithms.algorithm import TorchAlgorithm
from marlflow.algorithms.part import unplanned_stages
from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.batches.batch import Batch
from marlflow.batches.items import Fragment
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Experiment
from marlflow.config.league import is_meta_game, mode_name
from marlflow.config.policy_assignment import subject_of
from marlflow.env.episode_location import raised
from marlflow.flow import Feed, Flow, Place, Plan, Together, WorkBetweenRounds, source, together
from marlflow.league.league import League
from marlflow.league.psro import PSRO
from marlflow.league.sides import sides_of
from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.spec import LearnerSpec, RunSpec
from marlflow.runtime.stage_chain import ON_WORKERS, InlinePlace
from marlflow.sampling.protocol import Drain, Request, Round
from marlflow.stages import ByPolicy, Collect, CollectNext

ROUNDS_IN_QUEUE = 2


@dataclass(frozen=True, slots=True)
class RoundHooks:
    """Let the driver give the next request and process each round."""

    next_request: Callable[[], Request | Drain | None]
    round_made: Callable[[Round], Round | Awaitable[Round]]


@dataclass(frozen=True, slots=True)
class ReportMetrics:
    """Count a round's steps and faults; evaluate and report when due."""

    hooks: RoundHooks = field(repr=False)

    def __call__(self, round: Round) -> Round | Awaitable[Round]:
        """Return the round unchanged."""
        return self.hooks.round_made(round)


def build_plan(
    experiment: Experiment, spec: RunSpec, parts: RunComponents, hooks: RoundHooks, compiled: bool = False
) -> Together:
    """Build the plan of the whole run; `compiled`: it shows that rollouts are."""
    builders: dict[str, Callable[[Flow[Fragment]], Plan]] = {}
    for name, learner in spec.learners.items():
        builders[name] = partial(learner_plan, spec=learner, parts=parts)
    kind = CollectNext if experiment.rollouts.pace == "asynchronous" else Collect
    collected = source(kind(parts.workers, hooks.next_request, compiled)).then(ReportMetrics(hooks))
    return together(
        collected,
        by=divided_among(spec.learners.values()),
        plans=builders,
        feeds={name: Feed(_queue_fragments(experiment, spec, name)) for name in spec.learners},
        rounds=experiment.rollouts.pace,
    )


def divided_among(learners: Collection[LearnerSpec]) -> ByPolicy:
    """Return the operator that divides rounds among the plans of `learners`."""
    joint = {spec.name: spec.members for spec in learners if spec.is_joint}
    union = {spec.name: spec.others for spec in learners if spec.others}
    return ByPolicy(joint, {spec.members[0]: spec.name for spec in learners if not spec.is_joint}, union)


def learner_plan(experience: Flow[Fragment], spec: LearnerSpec, parts: RunComponents) -> Plan:
    """Build the plan of one learner, with its stages placed; raise ConfigInvalid if that fails."""
    learner = parts.learners[spec.name]
    try:
        plan = spec.algorithm.plan(experience, learner, [parts.replays[name] for name in spec.replays])
    # These errors already say what is wrong.
    except MarlflowError:
        raise
    except Exception as error:
        text = f"{subject_of(spec)}: its plan cannot be made: {raised(error)}"
        raise ConfigInvalid([text]) from error
    if not isinstance(plan, Plan):
        raise ConfigInvalid([f"{subject_of(spec)}: its plan() returned a {type(plan).__name__}, and no Plan"])
    if isinstance(spec.algorithm, TorchAlgorithm) and (lacking := list(unplanned_stages(spec.algorithm, plan))):
        raise ConfigInvalid([f"{subject_of(spec)} {problem}" for problem in lacking])
    if spec.others:
        plan = replace(plan, title=f"{plan.title or plan.name}, on rows of {', '.join(spec.others)}")
    if spec.members != (spec.name,):
        plan = replace(plan, title=f"{plan.title or plan.name} for {' and '.join(spec.members)}")
    return spec.relocated_stages.applied(plan, experience, learner, parts.driver) if spec.stages else plan


def _queue_fragments(experiment: Experiment, spec: RunSpec, name: str) -> int:
    return experiment.learner(name).queue_fragments or ROUNDS_IN_QUEUE * spec.num_workers


@dataclass(slots=True)
class _DrawnComponent:
    """Stand in for a learner, a replay or workers in a plan that is only drawn."""

    name: str
    place: Place | None
    trains_on: type = Batch
    seats: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    loss_groups: Mapping[str, type] = field(default_factory=dict)


def drawn_plan(experiment: Experiment, spec: RunSpec, compiled: bool = False) -> Together:
    """Build the plan as `build_plan` does, for drawing and checking only."""
    placeholder: Any = _DrawnComponent
    learners, replays = {}, {}
    for name, learner in spec.learners.items():
        place = InlinePlace(ON_WORKERS if learner.on_workers else f"learner {name}")
        learners[name] = placeholder(name, place, learner.trains_on, learner.seats, learner.loss_groups)
        # Drawings name replays by their own place only where they have their own process.
        for replay in learner.replays:
            replays[replay] = placeholder(replay, InlinePlace(f"replay {replay}") if learner.replays_apart else place)
    parts = RunComponents(placeholder("workers", None), learners, replays)
    return build_plan(experiment, spec, parts, RoundHooks(lambda: None, _unchanged), compiled)


def _unchanged(round: Round) -> Round:
    return round


def with_league(plan: Together, checked: CheckedExperiment) -> Together:
    """Return the plan with the league of the experiment, if there is one, as work between rounds."""
    league = checked.experiment.league
    return plan if league is None else replace(plan, between_rounds=(league_work(league, checked),))


def league_work(league: League, checked: CheckedExperiment) -> WorkBetweenRounds:
    """Return what a league does between rounds.

    `Score` counts results and matches, `Decide` is the rules of snapshots and resets, `Apply` freezes and resets
    policies, `Referee` plays matches, and `Solve` computes meta-strategies. Then the next round is dealt.
    """
    sides, _ = sides_of(league.sides, checked.agents)
    policies = {name: policy for name, policy in checked.spec.policies.items() if name not in league.members}
    members = ", ".join(f"{name} ({policy.algorithm.name})" for name, policy in policies.items())
    title = f"{mode_name(league.matchmaker)} over {members}; sides {' | '.join(sides.names)}"
    referees = checked.spec.num_referees if checked.experiment.runtime.name == "ray" else 0
    results = ("results", ("Score", "Decide", "Apply"), "after every round")
    return WorkBetweenRounds("league", title, (results, *_matches(league, referees)))


def _matches(league: League, referees: int) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    by = f", by {referees} referee{'s' * (referees > 1)}" if referees else ""
    if is_meta_game(league):
        games = f"{league.matchmaker.games:,} games" if isinstance(league.matchmaker, PSRO) else "games"
        return (("matches", ("Referee", "Score", "Solve"), f"{games} of each new profile{by}, for which rounds wait"),)
    rules = league.matches
    if (every := rules.interval()) is None:
        return ()
    when = f"at most {rules.games:,} games for every {every:,} env steps"
    return (("matches", ("Referee", "Score"), f"{when}{by}{', beside rounds' if by else ''}"),)
