"""Check an experiment before it starts, and report all problems at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import describe_space, needs_state
from marlflow.base.errors import ConfigInvalid
from marlflow.base.problems import Problem, Problems
from marlflow.base.spaces import Spaces
from marlflow.config.adaptation import adaptation_problems
from marlflow.config.costs import cost_environment_problems, cost_row_problems
from marlflow.config.critics import (
    critic_environment_problems,
    critic_remarks,
    recorded_critic_problems,
    with_state_space,
)
from marlflow.config.environment import NOT_REPRODUCIBLE
from marlflow.config.experiment import Experiment, LearnerConfig, Policy
from marlflow.config.frozen import frozen_problems, with_frozen
from marlflow.config.joint import joint_problems, joint_stream_problems
from marlflow.config.league import assign_league, league_matchmaker, num_referees
from marlflow.config.learners import assigned_learner_problems, learner_problems, learners_of, resolved, subject_of
from marlflow.config.limits import limit_problems
from marlflow.config.memory import memory_problems
from marlflow.config.metric_names import goal_conflicts, goal_problems
from marlflow.config.nash_conv import nash_conv_problems
from marlflow.config.opponents import Pairings, pairings_of
from marlflow.config.placement import device_problems, placement_problems, placements
from marlflow.config.policy_assignment import PolicyAssignment, assign_policies
from marlflow.config.policy_checks import all_policy_problems
from marlflow.config.records import inspected_environment, maker, offline_records, record_problems, records_of, sources
from marlflow.config.resets import reset_problems
from marlflow.config.settings import any_wrong_type, remarks, setting_problems
from marlflow.config.shared_rows import others_of, shared_row_problems, with_sources_of_mode
from marlflow.config.warm_start import with_warm_starts
from marlflow.env import EnvAdapter
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
    """Hold a checked experiment and its RunSpec.

    `players` lists the agents that each policy plays, or may play by a matchmaker. `pairings` are for evaluation.
    `reproducible`: whether a seed determines its episode, as the environment's metadata says.
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
    checked, problems = _checked(experiment, problems, machines is None or machines.here)
    if machines is not None and not any(_process_problems(experiment)):
        requests, available = requests_of(checked.spec) if checked else _known_requests(experiment), machines.amounts
        problems += resource_problems(requests, total(available), available, machines.whole)
    # An experiment is written to the run's folder, where sources say more than their networks.
    return None if checked is None else replace(checked, experiment=given), problems


def _process_problems(experiment: Experiment) -> Iterator[Problem | str]:
    learner_placements = [placement for _, _, placement in experiment.all_learners()]
    for part in (experiment.rollouts, experiment.placement, *learner_placements):
        yield from setting_problems(part)
    yield from placement_problems(experiment)


def _checked(
    experiment: Experiment, problems: Problems, on_this_machine: bool
) -> tuple[CheckedExperiment | None, Problems]:
    try:
        env = _inspect(experiment, problems)
    except ConfigInvalid as error:
        # Without a mapping, the groups of the environment define the policies, so they are unknown here.
        known = experiment.policies if experiment.mapping else None
        return None, [*error.problems, *problems, *goal_problems(experiment, known)]
    policies = env.players.policies
    problems += goal_problems(experiment, policies)
    learners = learners_of(experiment, policies)
    problems += goal_conflicts(experiment, policies, learners)
    problems += device_problems(experiment, learners)
    problems += record_problems(experiment, policies)
    records = records_of(experiment, policies, env.spaces, problems)
    recorded = sources(experiment, policies)
    problems += [*recorded_critic_problems(policies, recorded), *cost_row_problems(policies, recorded)]
    unfit = dict(frozen_problems(policies, env.spaces, env.players.agents))
    problems += unfit.values()
    others = {name: policy for name, policy in policies.items() if name not in unfit}
    problems += all_policy_problems(others, learners, env.spaces, env.players.agents)
    if not problems:
        problems += shared_row_problems(experiment, policies, learners, env.spaces)
    # A policy has no spaces if the mapping could not be built.
    if problems or any(name not in env.spaces for name in policies):
        return None, problems
    with_spaces = {name: (policy, env.spaces[name]) for name, policy in policies.items()}
    pairings = pairings_of(experiment, env.seats, with_spaces, env.fitting, problems)
    spec = replace(_spec(experiment, env.players, learners, env.spaces, records), opponents=pairings.opponents)
    problems += joint_problems(spec.learners.values())
    problems += [problem for learner in spec.learners.values() for problem in _window_problems(learner, spec)]
    problems += reset_problems(_matchmaker(experiment, env, spec), spec, learners)
    if on_this_machine:
        problems += memory_problems(experiment, spec, env.fitting)
    # Creates actors, for which there may be no memory if that check failed.
    if not problems:
        spec = with_warm_starts(spec, policies, problems)
        problems += adaptation_problems(spec, env.has_tasks)
        problems += _nash_conv_problems(experiment, env, spec)
    if problems:
        return None, problems
    fitting = env.fitting
    return CheckedExperiment(experiment, spec, env.agents, fitting, env.state_space, pairings, env.reproducible), []


def _nash_conv_problems(experiment: Experiment, env: _InspectedEnv, spec: RunSpec) -> Iterator[str]:
    if experiment.league is not None and experiment.league.nash_conv_every_env_steps is not None:
        sides, _ = sides_of(experiment.league.sides, env.agents)
        for problem in nash_conv_problems(experiment.env, sides, spec.policies):
            yield f"league.nash_conv_every_env_steps: {problem}; or set it to null"


def _matchmaker(experiment: Experiment, env: _InspectedEnv, spec: RunSpec) -> object:
    if experiment.league is None:
        return experiment.mapping
    sides, _ = sides_of(experiment.league.sides, env.agents)
    return league_matchmaker(experiment.league, sides, env.players.agents, spec.learning, spec.seed)


@dataclass(frozen=True, slots=True)
class _InspectedEnv:
    """Hold what the checks read from the environment."""

    agents: tuple[str, ...]
    players: PolicyAssignment
    spaces: Mapping[str, Spaces]
    # The agents of each policy; with a matchmaker, all that it could play.
    fitting: Mapping[str, Sequence[str]]
    has_tasks: bool
    reproducible: bool
    state_space: gym.Box | None
    # None if the environment does not declare its agents.
    seats: Mapping[str, Spaces] | None


def _inspect(experiment: Experiment, problems: Problems) -> _InspectedEnv:
    """Open the environment and assign its agents; append to `problems`."""
    with inspected_environment(experiment, problems) as adapter:
        players = _assigned(experiment, adapter, problems)
        policies = players.policies
        problems += assigned_learner_problems(experiment, policies)
        spaces = _spaces(adapter, players.agents, problems)
        narrowed = players.mapping is not None or experiment.league is not None
        fitting = players.agents if narrowed else _fitting(adapter, spaces)
        problems += critic_environment_problems(experiment.env, adapter, policies)
        problems += cost_environment_problems(experiment.env, adapter, policies)
        problems += joint_stream_problems(experiment, adapter, policies)
        state_space = adapter.state_space() if any(needs_state(one.acts_by) for one in policies.values()) else None
        return _InspectedEnv(
            agents=tuple(adapter.agents),
            players=players,
            spaces=with_state_space(spaces, policies, state_space),
            fitting=fitting,
            has_tasks=adapter.has_tasks,
            reproducible=adapter.reproducible,
            state_space=state_space,
            seats={agent: _seat(adapter, agent) for agent in adapter.agents} if adapter.declared else None,
        )


def _assigned(experiment: Experiment, adapter: EnvAdapter, problems: Problems) -> PolicyAssignment:
    if experiment.league is not None:
        return assign_league(experiment, experiment.league, adapter, problems)
    return assign_policies(experiment, adapter, problems)


def _known_requests(experiment: Experiment) -> list[ResourceRequest]:
    rollouts, inference = experiment.rollouts, experiment.placement.inference
    requests = requests_of_workers(rollouts.num_workers, num_referees(experiment), rollouts.placement)
    learners = learners_of(experiment, experiment.policies)
    for name, placement in placements(experiment.placement, learners).items():
        if learners[name].algorithm.capabilities.learns_on == "learner":
            requests += requests_of_learner(name, placement, replays=())
    return requests + ([ResourceRequest("inference", inference.process)] if inference else [])


def _spec(
    experiment: Experiment,
    players: PolicyAssignment,
    learners: Mapping[str, LearnerConfig],
    spaces: Mapping[str, Spaces],
    records: Mapping[str, Dataset],
) -> RunSpec:
    rollouts, budget = experiment.rollouts, experiment.faults.env_errors + experiment.faults.env_hangs
    policies = {
        name: PolicySpec(name, policy.acts_by, policy.model, spaces[name], experiment.seed)
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


def _spaces(adapter: EnvAdapter, agents_of: Mapping[str, Sequence[str]], problems: Problems) -> dict[str, Spaces]:
    by_policy = {}
    for policy, agents in agents_of.items():
        masked = any(adapter.masked(agent) for agent in agents)
        first, *others = (replace(_seat(adapter, agent), masked=masked) for agent in agents)
        seats = tuple(sorted(adapter.agents.index(agent) for agent in agents)) if adapter.declared else ()
        by_policy[policy] = replace(first, seats=seats)
        problems.extend(
            f"policy {policy!r} plays {agents[0]!r} and {agent!r}, which {_space_differences(first, spaces)}; "
            "agents of one policy need the same spaces, so give them policies of their own"
            for agent, spaces in zip(agents[1:], others, strict=True)
            if spaces != first
        )
    return by_policy


def _seat(adapter: EnvAdapter, agent: str) -> Spaces:
    num_agents = len(adapter.agents) if adapter.declared else 0
    observation, action = adapter.observation_space(agent), adapter.action_space(agent)
    return Spaces(observation, action, adapter.masked(agent), num_agents=num_agents)


def _fitting(adapter: EnvAdapter, spaces: Mapping[str, Spaces]) -> Mapping[str, Sequence[str]]:
    return {
        policy: [
            agent
            for agent in adapter.agents
            if (adapter.observation_space(agent), adapter.action_space(agent))
            == (policy_spaces.observation, policy_spaces.action)
            and policy_spaces.masked >= adapter.masked(agent)
        ]
        for policy, policy_spaces in spaces.items()
    }


def _space_differences(first: Spaces, other: Spaces) -> str:
    differing = [("see", first.observation, other.observation), ("do", first.action, other.action)]
    return " and ".join(f"{verb} {_both_spaces(a, b)}" for verb, a, b in differing if a != b)


def _both_spaces(first: Any, other: Any) -> str:
    # Spaces may differ only in bounds or dtype, which the short description leaves out.
    short = describe_space(first), describe_space(other)
    return f"{first} and {other}" if short[0] == short[1] else " and ".join(short)


def _window_problems(learner: LearnerSpec, spec: RunSpec) -> Iterator[str]:
    n_step = getattr(learner.algorithm, "n_step", 1)
    if n_step > spec.ticks:
        yield (
            f"{subject_of(learner)} sums rewards over n_step={n_step} decisions, but a fragment "
            f"has at most {spec.ticks} of each agent (rollouts.fragment_env_steps={spec.fragment_env_steps} for "
            f"{spec.num_envs} envs on {spec.num_workers} workers); raise rollouts.fragment_env_steps or lower n_step"
        )
