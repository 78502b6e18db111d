"""Check an experiment before it starts, and report all problems at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gymnasium import spaces as gym

from marlflow.base.errors import ConfigInvalid
from marlflow.base.problems import Problem, Problems
from marlflow.base.spaces import Spaces
from marlflow.config.adaptation import adaptation_problems
from marlflow.config.critics import critic_remarks, recorded_critic_problems
from marlflow.config.environment import NOT_REPRODUCIBLE
from marlflow.config.experiment import Experiment, LearnerConfig, Policy, RunPlacement
from marlflow.config.frozen import frozen_problems, with_frozen
from marlflow.config.info_columns import column_row_problems, metric_columns
from marlflow.config.inspection import InspectedEnv, inspect_env
from marlflow.config.joint import joint_problems
from marlflow.config.league import league_matchmaker, num_referees
from marlflow.config.learners import learner_problems, learners_of, resolved, subject_of
from marlflow.config.limits import limit_problems
from marlflow.config.memory import memory_problems
from marlflow.config.metric_names import goal_conflicts, goal_problems
from marlflow.config.nash_conv import nash_conv_problems
from marlflow.config.opponents import Pairings, pairings_of
from marlflow.config.placement import device_problems, placements, reservation_problems
from marlflow.config.policy_assignment import PolicyAssignment
from marlflow.config.policy_checks import all_policy_problems
from marlflow.config.records import maker, offline_records, record_problems, records_of, sources
from marlflow.config.resets import reset_problems, reset_target_problems
from marlflow.config.settings import any_wrong_type, remarks, setting_problems
from marlflow.config.shared_rows import others_of, shared_row_problems, with_sources_of_mode
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
from marlflow.sampling.matchmaking import AllowedSeats


@dataclass(frozen=True)
class CheckedExperiment:
    """An experiment that passed all checks, with its RunSpec.

    `players` lists the agents that each policy plays, or may play by a matchmaker. `pairings` are for evaluation.
    `reproducible` is whether a seed determines its episode, as the environment's metadata says.
    """

    experiment: Experiment
    spec: RunSpec
    agents: tuple[str, ...]
    players: Mapping[str, Sequence[str]]
    state_space: gym.Box | None = None
    """Space of the environment's global state, if a policy needs it."""
    pairings: Pairings = field(default_factory=Pairings)
    reproducible: bool = True

    @property
    def remarks(self) -> Sequence[str]:
        """Return notes on settings that are allowed but unusual."""
        found = [*remarks(self.experiment), *critic_remarks(self.experiment.env, self.spec.policies)]
        return found if self.reproducible else [*found, NOT_REPRODUCIBLE]

    @property
    def seats(self) -> AllowedSeats:
        """Return the seats that a matchmaker may assign."""
        return AllowedSeats(self.agents, self.players)


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
    limits = limit_problems(experiment)
    if any_wrong_type(limits):
        return None, limits
    limits += learner_problems(experiment)
    given = with_sources_of_mode(resolved(experiment))
    problems = list(limits)
    experiment = with_frozen(given, problems)
    checked, learners, problems = _checked(experiment, problems, machines is None or machines.here)
    if machines is not None:
        requests = requests_of(checked.spec) if checked else _known_requests(experiment, learners)
        problems += resource_problems(requests, total(machines.amounts), machines.amounts, machines.whole)
    # An experiment is written to the run's folder, where sources say more than their networks.
    return None if checked is None else replace(checked, experiment=given), problems


def _checked(
    experiment: Experiment, problems: Problems, on_this_machine: bool
) -> tuple[CheckedExperiment | None, Mapping[str, LearnerConfig], Problems]:
    try:
        env = inspect_env(experiment, problems)
    except ConfigInvalid as error:
        # Without a mapping, the groups of the environment define the policies, so they are unknown here.
        known = experiment.policies if experiment.mapping else None
        found = [*error.problems, *problems, *goal_problems(experiment, known)]
        return None, learners_of(experiment, experiment.policies), found
    policies = env.players.policies
    problems += goal_problems(experiment, policies)
    learners = learners_of(experiment, policies)
    problems += goal_conflicts(experiment, policies, learners)
    problems += device_problems(experiment, learners)
    problems += record_problems(experiment, policies)
    records = records_of(experiment, policies, env.spaces, problems)
    recorded = sources(experiment, policies)
    problems += [*recorded_critic_problems(policies, recorded), *column_row_problems(policies, recorded)]
    problems += _fit_problems(env, learners)
    if not problems:
        problems += shared_row_problems(experiment, policies, learners, env.spaces)
    # A policy has no spaces if the mapping could not be built.
    if problems or any(name not in env.spaces for name in policies):
        return None, learners, problems
    with_spaces = {name: (policy, env.spaces[name]) for name, policy in policies.items()}
    pairings = pairings_of(experiment, env.seats, with_spaces, env.fitting, problems)
    spec = replace(_spec(experiment, env.players, learners, env.spaces, records), opponents=pairings.opponents)
    problems += _spec_problems(experiment, env, spec, learners)
    if on_this_machine:
        problems += memory_problems(experiment, spec, env.fitting)
    # Creates actors, for which there may be no memory if that check failed.
    if not problems:
        spec = with_warm_starts(spec, policies, problems)
        problems += adaptation_problems(spec, env.has_tasks)
        problems += _nash_conv_problems(experiment, env, spec)
    if problems:
        return None, learners, problems
    fitting = env.fitting
    return (
        CheckedExperiment(experiment, spec, env.agents, fitting, env.state_space, pairings, env.reproducible),
        learners,
        [],
    )


def _fit_problems(env: InspectedEnv, learners: Mapping[str, LearnerConfig]) -> Iterator[Problem | str]:
    policies = env.players.policies
    unfit = dict(frozen_problems(policies, env.spaces, env.players.agents))
    yield from unfit.values()
    others = {name: policy for name, policy in policies.items() if name not in unfit}
    yield from all_policy_problems(others, learners, env.spaces, env.players.agents)


def _spec_problems(
    experiment: Experiment, env: InspectedEnv, spec: RunSpec, learners: Mapping[str, LearnerConfig]
) -> Iterator[Problem | str]:
    yield from joint_problems(spec.learners.values())
    for learner in spec.learners.values():
        yield from _window_problems(learner, spec)
    yield from reset_problems(_matchmaker(experiment, env, spec), spec, learners)
    yield from reset_target_problems(experiment, spec)


def _nash_conv_problems(experiment: Experiment, env: InspectedEnv, spec: RunSpec) -> Iterator[str]:
    if experiment.league is not None and experiment.league.nash_conv_every_env_steps is not None:
        sides, _ = sides_of(experiment.league.sides, env.agents)
        for problem in nash_conv_problems(experiment.env, sides, spec.policies):
            yield f"league.nash_conv_every_env_steps: {problem}; or set it to null"


def _matchmaker(experiment: Experiment, env: InspectedEnv, spec: RunSpec) -> object:
    if experiment.league is None:
        return experiment.mapping
    sides, _ = sides_of(experiment.league.sides, env.agents)
    return league_matchmaker(experiment.league, sides, env.players.agents, spec.learning, spec.seed)


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


def _spec(
    experiment: Experiment,
    players: PolicyAssignment,
    learners: Mapping[str, LearnerConfig],
    spaces: Mapping[str, Spaces],
    records: Mapping[str, Dataset],
) -> RunSpec:
    rollouts, budget = experiment.rollouts, experiment.faults.env_errors + experiment.faults.env_hangs
    policies = {
        name: PolicySpec(
            name,
            policy.acts_by,
            policy.model,
            spaces[name],
            experiment.seed,
            policy.row_columns,
            dict(policy.reward_from),
        )
        for name, policy in players.policies.items()
    }
    return RunSpec(
        policies=policies,
        learners=_learner_specs(experiment, learners, policies, players.policies),
        mapping=players.mapping,
        make_env=maker(experiment.env),
        num_envs=experiment.env.num_envs,
        num_workers=rollouts.num_workers,
        fragment_env_steps=rollouts.fragment_env_steps,
        compiled_rollouts=rollouts.compiled,
        seed=experiment.seed,
        rollout_placement=rollouts.placement,
        # The driver counts the faults of all workers and ends the run at one more than the budget, so a worker has to
        # report that one too.
        tolerated_faults=budget + 1,
        step_timeout_s=experiment.env.step_timeout_s,
        history_env_steps=experiment.checkpoint.replay_max_env_steps,
        spread=experiment.placement.spread,
        inference=experiment.placement.inference,
        records=records,
        offline=offline_records(experiment.env) is not None,
        worker_members=(experiment.league.store if experiment.league else StoreSettings()).worker_members,
        num_referees=num_referees(experiment),
        metrics=metric_columns(experiment.metrics),
    )


def _learner_specs(
    experiment: Experiment,
    learners: Mapping[str, LearnerConfig],
    policies: Mapping[str, PolicySpec],
    settings: Mapping[str, Policy],
) -> dict[str, LearnerSpec]:
    placed = placements(experiment.placement, learners)
    return {
        name: LearnerSpec(
            name,
            tuple(policies[member] for member in learner.policies),
            learner.algorithm,
            experiment.seed,
            placed[name],
            others_of(settings, learner),
        )
        for name, learner in learners.items()
    }


def _window_problems(learner: LearnerSpec, spec: RunSpec) -> Iterator[str]:
    n_step = getattr(learner.algorithm, "n_step", 1)
    if n_step > spec.ticks:
        yield (
            f"{subject_of(learner)} sums rewards over n_step={n_step} decisions, but a fragment "
            f"has at most {spec.ticks} of each agent (rollouts.fragment_env_steps={spec.fragment_env_steps} for "
            f"{spec.num_envs} envs on {spec.num_workers} workers); raise rollouts.fragment_env_steps or lower n_step"
        )
