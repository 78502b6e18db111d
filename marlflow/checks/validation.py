"""Check an experiment before it starts, phase by phase, and report all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid, Problem, ProblemKind, Problems
from marlflow.checks.changes import change_problems, copy_problems
from marlflow.checks.environment_needs import joint_problems, recorded_critic_problems
from marlflow.checks.info_columns import column_row_problems, metric_columns
from marlflow.checks.inspection import InspectedEnv, inspect_env
from marlflow.checks.leagues import nash_conv_problems, reset_problems, reset_target_problems
from marlflow.checks.limits import (
    declared_problems,
    env_division_problems,
    learner_limit_problems,
    store_problems,
)
from marlflow.checks.memory import memory_problems
from marlflow.checks.metric_names import goal_conflicts, goal_problems
from marlflow.checks.policies import adaptation_problems, all_policy_problems
from marlflow.checks.shared_rows import others_of, shared_row_problems, with_sources_of_mode
from marlflow.config.callbacks import callback_problems
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Experiment, LearnerConfig, Policy, RunPlacement
from marlflow.config.imported_policies import frozen_problems, with_frozen
from marlflow.config.league import league_matchmaker, num_referees
from marlflow.config.opponents import Pairings, pairings_of
from marlflow.config.placement import device_problems, placement_problems, placements, reservation_problems
from marlflow.config.policy_assignment import learner_problems, learners_of, resolved, subject_of
from marlflow.config.records import maker, offline_records, record_problems, records_of, sources
from marlflow.config.schema import read
from marlflow.config.settings import setting_problems
from marlflow.config.warm_start import with_warm_starts
from marlflow.league.league import StoreSettings
from marlflow.league.sides import sides_of
from marlflow.offline.dataset import Dataset
from marlflow.runtime.resources import (
    Machines,
    ResourceRequest,
    requests_of,
    requests_of_learner,
    requests_of_workers,
    total,
)
from marlflow.runtime.resources import problems as resource_problems
from marlflow.runtime.spec import LearnerSpec, PolicySpec, RunSpec

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class CheckContext:
    """An experiment as far as it is known, and the problems that earlier phases found.

    `env` is the environment as it was inspected, and `spec` the run's; None where they are not known, which ends the
    phases that need them.
    """

    experiment: Experiment
    found: tuple[Problem | str, ...] = ()
    on_this_machine: bool = True
    learners: Mapping[str, LearnerConfig] = field(default_factory=dict)
    env: InspectedEnv | None = None
    records: Mapping[str, Dataset] = field(default_factory=dict)
    pairings: Pairings = field(default_factory=Pairings)
    spec: RunSpec | None = None

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Return the policies that have agents, in phases that come only when the environment is known."""
        return self.inspected.players.policies

    @property
    def inspected(self) -> InspectedEnv:
        """Return the environment, in phases that come only when it is known."""
        assert self.env is not None
        return self.env

    @property
    def run(self) -> RunSpec:
        """Return the run's spec, in phases that come only when it is known."""
        assert self.spec is not None
        return self.spec


def types_are_right(context: CheckContext) -> bool:
    """Let a phase run unless a value has a wrong type, so that its checks would fail."""
    return not any(isinstance(one, Problem) and one.kind is ProblemKind.WRONG_TYPE for one in context.found)


def nothing_found(context: CheckContext) -> bool:
    """Let a phase run if there is no problem so far."""
    return not context.found


@dataclass(frozen=True)
class Phase:
    """Checks whose problems are reported together.

    Where `when` forbids the phase, no later one runs either. Before its checks, `make` adds to the context the values
    that this and later phases need, and their problems to the problems.
    """

    checks: Sequence[Callable[[CheckContext], Iterable[Problem | str]]]
    when: Callable[[CheckContext], bool] = lambda _: True
    make: Callable[[CheckContext, Problems], CheckContext] = lambda context, _: context


def run_phases(phases: Sequence[Phase], context: CheckContext) -> CheckContext:
    """Return the context after all phases that can run, with their problems in order."""
    for phase in phases:
        if not phase.when(context):
            break
        problems = list(context.found)
        context = replace(phase.make(context, problems), found=tuple(problems))
        problems += [problem for check in phase.checks for problem in check(context)]
        context = replace(context, found=tuple(problems))
    return context


def from_config(config: DictConfig, earlier_problems: Sequence[str] = ()) -> Experiment:
    """Build the experiment of a composed configuration; raise ConfigInvalid with all problems."""
    problems = list(earlier_problems)
    experiment = read(config, problems)
    if problems:
        raise ConfigInvalid([*problems, *(problems_of(experiment)[1] if experiment else ())])
    assert experiment is not None
    return experiment


def ready(experiment: Experiment, machines: Machines | None = None) -> CheckedExperiment:
    """Open the environment once and check everything; raise ConfigInvalid with all problems.

    `machines` is the available hardware; None skips that check.
    """
    checked, problems = problems_of(experiment, machines)
    if checked is None or problems:
        raise ConfigInvalid(problems)
    return checked


def problems_of(experiment: Experiment, machines: Machines | None = None) -> tuple[CheckedExperiment | None, Problems]:
    """Check like `ready`, but return the problems instead of raising them."""
    context = run_phases(SETTINGS, CheckContext(experiment, on_this_machine=machines is None or machines.here))
    if not types_are_right(context):
        return None, list(context.found)
    given = with_sources_of_mode(resolved(experiment))
    context = run_phases(WHOLE, replace(context, experiment=given))
    problems = list(context.found)
    is_ready = context.spec is not None and not problems
    if machines is not None:
        requests = requests_of(context.run) if is_ready else _known_requests(context.experiment, context.learners)
        problems += resource_problems(requests, total(machines.amounts), machines.amounts, machines.whole)
    if not is_ready:
        return None, problems
    env = context.inspected
    # An experiment is written to the run's folder, where sources say more than their networks.
    checked = CheckedExperiment(
        given, context.run, env.agents, env.fitting, env.state_space, context.pairings, env.reproducible
    )
    return checked, problems


def _with_env(context: CheckContext, problems: Problems) -> CheckContext:
    experiment = context.experiment
    try:
        env = inspect_env(experiment, problems)
    except ConfigInvalid as error:
        problems[:0] = error.problems
        return replace(context, learners=learners_of(experiment, experiment.policies))
    return replace(context, env=env, learners=learners_of(experiment, env.players.policies))


def _with_spec(context: CheckContext, problems: Problems) -> CheckContext:
    env, experiment = context.inspected, context.experiment
    with_spaces = {name: (policy, env.spaces[name]) for name, policy in context.policies.items()}
    pairings = pairings_of(experiment, env.seats, with_spaces, env.fitting, problems)
    return replace(context, pairings=pairings, spec=_spec(context, pairings))


def _all_have_spaces(context: CheckContext) -> bool:
    # A policy has no spaces if the mapping could not be built.
    return nothing_found(context) and all(name in context.inspected.spaces for name in context.policies)


def _goal_problems(context: CheckContext) -> Iterator[Problem | str]:
    # Without a mapping, the groups of the environment define the policies: unknown if it could not be opened.
    experiment = context.experiment
    declared = experiment.policies if experiment.mapping else None
    yield from goal_problems(experiment, context.policies if context.env else declared)


def _record_problems(context: CheckContext) -> Iterator[Problem | str]:
    recorded = sources(context.experiment, context.policies)
    yield from recorded_critic_problems(context.policies, recorded)
    yield from column_row_problems(context.experiment, context.policies, recorded)


def _fit_problems(context: CheckContext) -> Iterator[Problem | str]:
    env, policies = context.inspected, context.policies
    unfit = dict(frozen_problems(policies, env.spaces, env.players.agents))
    yield from unfit.values()
    others = {name: policy for name, policy in policies.items() if name not in unfit}
    yield from all_policy_problems(others, context.learners, env.spaces, env.players.agents)


def _successor_problems(context: CheckContext) -> Iterator[Problem | str]:
    experiment, spec, env = context.experiment, context.run, context.inspected
    matchmaker: object = experiment.mapping
    if experiment.league is not None:
        sides, _ = sides_of(experiment.league.sides, env.agents)
        matchmaker = league_matchmaker(experiment.league, sides, env.players.agents, spec.learning, spec.seed)
    if unfit := list(reset_problems(matchmaker, spec, context.learners)):
        yield from unfit
        return
    yield from reset_target_problems(experiment, spec)
    yield from change_problems(experiment.callbacks, spec, context.learners, matchmaker)


def _memory_problems(context: CheckContext) -> Iterator[Problem | str]:
    if context.on_this_machine:
        yield from memory_problems(context.experiment, context.run, context.inspected.fitting)


def _nash_conv_problems(context: CheckContext) -> Iterator[str]:
    experiment = context.experiment
    if experiment.league is not None and experiment.league.nash_conv_every_env_steps is not None:
        sides, _ = sides_of(experiment.league.sides, context.inspected.agents)
        for problem in nash_conv_problems(experiment.env, sides, context.run.policies):
            yield f"league.nash_conv_every_env_steps: {problem}; or set it to null"


def _known_requests(experiment: Experiment, learners: Mapping[str, LearnerConfig]) -> list[ResourceRequest]:
    """Return the requests of the processes whose settings are valid, of an experiment that is not."""
    rollouts, run = experiment.rollouts, experiment.placement
    requests: list[ResourceRequest] = []
    if not any(setting_problems(rollouts)) and not any(reservation_problems("", rollouts.placement)):
        # Not a request for each of billions of referees, which are refused already.
        league = experiment.league
        referees = 0 if league is None or any(setting_problems(league.matches)) else league.matches.workers
        requests += requests_of_workers(rollouts.num_workers, referees, rollouts.placement)
    if not any(setting_problems(RunPlacement(shared_gpus=run.shared_gpus))):
        for name, placement in placements(run, learners).items():
            is_valid = not any(setting_problems(placement)) and not any(reservation_problems("", placement.process))
            if is_valid and learners[name].algorithm.capabilities.learns_on == "learner":
                requests += requests_of_learner(name, placement, replays=())
    if run.inference is not None and not any(setting_problems(run.inference)):
        inference = run.inference.process
        requests += [] if any(reservation_problems("", inference)) else [ResourceRequest("inference", inference)]
    return requests


def _spec(context: CheckContext, pairings: Pairings) -> RunSpec:
    experiment, env = context.experiment, context.inspected
    rollouts, budget = experiment.rollouts, experiment.faults.env_errors + experiment.faults.env_hangs
    policies = {
        name: PolicySpec(
            name,
            policy.acts_by,
            policy.model,
            env.spaces[name],
            experiment.seed,
            policy.row_columns,
            dict(policy.reward_from),
        )
        for name, policy in context.policies.items()
    }
    return RunSpec(
        policies=policies,
        learners=_learner_specs(context, policies),
        mapping=env.players.mapping,
        make_env=maker(experiment.env),
        num_envs=experiment.env.num_envs,
        num_workers=rollouts.num_workers,
        fragment_env_steps=rollouts.fragment_env_steps,
        compiled_rollouts=rollouts.compiled,
        seed=experiment.seed,
        rollout_placement=rollouts.placement,
        # The driver counts the faults of all workers and ends the run at one fault more than the budget, so a worker
        # must report this fault, too.
        tolerated_faults=budget + 1,
        step_timeout_s=experiment.env.step_timeout_s,
        history_env_steps=experiment.checkpoint.replay_max_env_steps,
        spread=experiment.placement.spread,
        inference=experiment.placement.inference,
        records=context.records,
        opponents=pairings.opponents,
        offline=offline_records(experiment.env) is not None,
        worker_members=(experiment.league.store if experiment.league else StoreSettings()).worker_members,
        num_referees=num_referees(experiment),
        metrics=metric_columns(experiment.metrics),
    )


def _learner_specs(context: CheckContext, policies: Mapping[str, PolicySpec]) -> dict[str, LearnerSpec]:
    placed = placements(context.experiment.placement, context.learners)
    return {
        name: LearnerSpec(
            name,
            tuple(policies[member] for member in learner.policies),
            learner.algorithm,
            context.experiment.seed,
            placed[name],
            others_of(context.policies, learner),
        )
        for name, learner in context.learners.items()
    }


def _window_problems(spec: RunSpec) -> Iterator[str]:
    for learner in spec.learners.values():
        n_step = getattr(learner.algorithm, "n_step", 1)
        if n_step > spec.ticks:
            yield (
                f"{subject_of(learner)} sums rewards over n_step={n_step} decisions, but a fragment "
                f"has at most {spec.ticks} of each agent (rollouts.fragment_env_steps={spec.fragment_env_steps} for "
                f"{spec.num_envs} envs on {spec.num_workers} workers); "
                "raise rollouts.fragment_env_steps or lower n_step"
            )


SETTINGS: Sequence[Phase] = (
    Phase([lambda it: declared_problems(it.experiment)]),
    Phase(
        [
            lambda it: [] if it.found else env_division_problems(it.experiment),
            lambda it: callback_problems(it.experiment),
            lambda it: store_problems(it.experiment.runtime),
            lambda it: placement_problems(it.experiment),
            lambda it: learner_limit_problems(it.experiment),
            lambda it: learner_problems(it.experiment),
        ],
        when=types_are_right,
    ),
)
"""Checks that need the experiment alone."""

WHOLE: Sequence[Phase] = (
    Phase([], make=lambda it, problems: replace(it, experiment=with_frozen(it.experiment, problems))),
    Phase([_goal_problems], make=_with_env),
    Phase(
        [
            lambda it: goal_conflicts(it.experiment, it.policies, it.learners),
            lambda it: device_problems(it.experiment, it.learners),
            lambda it: record_problems(it.experiment, it.policies),
        ],
        when=lambda it: it.env is not None,
    ),
    Phase(
        [_record_problems, _fit_problems],
        make=lambda it, problems: replace(
            it, records=records_of(it.experiment, it.policies, it.inspected.spaces, problems)
        ),
    ),
    Phase(
        [lambda it: shared_row_problems(it.experiment, it.policies, it.learners, it.inspected.spaces)],
        when=nothing_found,
    ),
    Phase(
        [
            lambda it: joint_problems(it.run.learners.values()),
            lambda it: _window_problems(it.run),
            _successor_problems,
            _memory_problems,
        ],
        when=_all_have_spaces,
        make=_with_spec,
    ),
    # Creates actors and learners, for which there may be no memory if that check failed.
    Phase(
        [
            lambda it: adaptation_problems(it.run, it.inspected.has_tasks),
            lambda it: copy_problems(it.experiment.callbacks, it.run),
            _nash_conv_problems,
        ],
        when=nothing_found,
        make=lambda it, problems: replace(it, spec=with_warm_starts(it.run, it.policies, problems)),
    ),
)
"""Checks that also need the environment, the records and the parts of the run."""
