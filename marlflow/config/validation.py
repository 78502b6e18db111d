"""Check an experiment before it starts, and report all problems at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import describe_space
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.errors import ConfigInvalid
from marlflow.base.problems import Problem, ProblemKind, Problems
from marlflow.base.spaces import Spaces
from marlflow.config.adaptation import adaptation_problems
from marlflow.config.environment import environment_name
from marlflow.config.experiment import Env, Experiment, LearnerConfig, Policy
from marlflow.config.learners import learner_problems, learners_of, subject_of, unplayed_problems
from marlflow.config.limits import limit_problems
from marlflow.config.memory import memory_problems, parameters_of
from marlflow.config.metric_names import goal_problems
from marlflow.config.opponents import Pairings, pairings_of
from marlflow.config.placement import device_problems, placement_problems, placements
from marlflow.config.policy_assignment import PolicyAssignment, assign_policies
from marlflow.config.records import looked_at, maker, offline_records, record_problems, records_of
from marlflow.config.renamed import renamed_hooks
from marlflow.config.settings import any_wrong_type, remarks, setting_problems
from marlflow.env import EnvAdapter
from marlflow.env.frames import raised
from marlflow.offline.dataset import Dataset
from marlflow.policy.torso import build_torso
from marlflow.runtime.resources import Machines, ResourceRequest, requests_of, requests_of_learner, total
from marlflow.runtime.resources import problems as resource_problems
from marlflow.runtime.spec import LearnerSpec, PolicySpec, RunSpec
from marlflow.sampling.matchmaking import AllowedSeats

_MOST_NAMED = 3


@dataclass(frozen=True)
class CheckedExperiment:
    """Hold a checked experiment, its assignment of policies to agents, and its RunSpec.

    `players` lists the agents that each policy plays, or may be seated as by a matchmaker. `pairings` are those of the
    evaluation.
    """

    experiment: Experiment
    spec: RunSpec
    agents: tuple[str, ...]
    players: Mapping[str, Sequence[str]]
    state_space: gym.Box | None = None
    """Space of the environment's global state, if a policy needs it."""
    pairings: Pairings = field(default_factory=Pairings)

    @property
    def remarks(self) -> Sequence[str]:
        """Return notes on settings that are allowed but unusual."""
        return list(remarks(self.experiment))

    @property
    def seats(self) -> AllowedSeats:
        """Return the seats that a matchmaker may assign."""
        return AllowedSeats(self.agents, self.players)


def ready(experiment: Experiment, machines: Machines | None = None) -> CheckedExperiment:
    """Open the environment once and check everything; raise ConfigInvalid with all problems.

    `machines` is the available hardware; None skips that check.
    """
    found, problems = problems_of(experiment, machines)
    if found is None or problems:
        raise ConfigInvalid(problems)
    return found


def problems_of(experiment: Experiment, machines: Machines | None = None) -> tuple[CheckedExperiment | None, Problems]:
    """Check like `ready`, but return the problems, so that a caller can add others before raising."""
    limits = limit_problems(experiment)
    if any_wrong_type(limits):
        return None, limits
    limits += learner_problems(experiment)
    experiment = experiment.resolved()
    found, problems = _checked(experiment, list(limits), machines is None or machines.here)
    if machines is not None and not any(_process_problems(experiment)):
        asked, there = requests_of(found.spec) if found else _asked(experiment), machines.amounts
        problems += resource_problems(asked, total(there), there, machines.whole)
    return found, problems


def _process_problems(experiment: Experiment) -> Iterator[Problem | str]:
    """Yield problems of the settings that resource requests are computed from."""
    own = [placement for _, _, placement in experiment.all_learners()]
    for part in (experiment.rollouts, experiment.placement, *own):
        yield from setting_problems(part)
    yield from placement_problems(experiment)


def _checked(
    experiment: Experiment, problems: Problems, on_this_machine: bool
) -> tuple[CheckedExperiment | None, Problems]:
    try:
        with looked_at(experiment, problems) as adapter:
            agents = tuple(adapter.agents)
            players = assign_policies(experiment, adapter, problems)
            policies = players.policies
            problems += unplayed_problems(experiment, policies)
            spaces = _spaces(adapter, players.agents, problems)
            fitting = _fitting(adapter, players, spaces)
            problems += _stateless(experiment.env, adapter, policies)
            has_tasks = adapter.has_tasks
            state_space = (
                adapter.state_space() if any(p.acts_by.capabilities.state for p in policies.values()) else None
            )
            seats = {agent: _seat(adapter, agent) for agent in agents} if adapter.declared else None
    except ConfigInvalid as error:
        # Without a mapping, the groups of the environment define the policies, so they are unknown here.
        known = experiment.policies if experiment.mapping else None
        return None, [*error.problems, *problems, *goal_problems(experiment, known)]
    if experiment.rollouts.pace == "asynchronous" and callable(experiment.mapping):
        problems.append("rollouts.pace asynchronous: matchups are dealt in rounds of all workers; choose lockstep")
    problems += goal_problems(experiment, policies)
    learners = learners_of(experiment, policies)
    problems += _aims(experiment, policies, learners)
    problems += device_problems(experiment, learners)
    problems += record_problems(experiment, policies)
    records = records_of(experiment, policies, spaces, problems)
    for name, of_policy in spaces.items():
        if name in policies:
            problems += _policy_problems(name, policies[name], of_policy, players.agents[name])
    # A policy has no spaces if the mapping could not be built.
    if problems or any(name not in spaces for name in policies):
        return None, problems
    able = {name: (policy, spaces[name]) for name, policy in policies.items()}
    pairings = pairings_of(experiment, seats, able, fitting, problems)
    spec = replace(_spec(experiment, players, learners, spaces, records), opponents=pairings.opponents)
    problems += [problem for learner in spec.learners.values() for problem in _window_problems(learner, spec)]
    if on_this_machine:
        problems += memory_problems(experiment, spec, fitting)
    # Creates actors, for which there may be no memory if that check failed.
    if not problems:
        problems += adaptation_problems(spec, has_tasks)
    if problems:
        return None, problems
    return CheckedExperiment(experiment, spec, agents, fitting, state_space, pairings), []


def _asked(experiment: Experiment) -> list[ResourceRequest]:
    rollouts, inference = experiment.rollouts, experiment.placement.inference
    asked = [ResourceRequest(f"rollout worker {number}", rollouts.placement) for number in range(rollouts.num_workers)]
    learners = learners_of(experiment, experiment.policies)
    for name, placement in placements(experiment.placement, learners).items():
        if learners[name].algorithm.capabilities.learns_on == "learner":
            asked += requests_of_learner(name, placement, replays=())
    return asked + ([ResourceRequest("inference", inference.process)] if inference else [])


def _spec(
    experiment: Experiment,
    players: PolicyAssignment,
    learners: Mapping[str, LearnerConfig],
    spaces: Mapping[str, Spaces],
    records: Mapping[str, Dataset],
) -> RunSpec:
    rollouts, budget = experiment.rollouts, experiment.faults.env_errors + experiment.faults.env_hangs
    placed = placements(experiment.placement, learners)
    policies = {
        name: PolicySpec(name, policy.acts_by, policy.model, spaces[name], experiment.seed)
        for name, policy in players.policies.items()
    }
    return RunSpec(
        policies=policies,
        learners={
            name: LearnerSpec(
                name,
                tuple(policies[member] for member in learner.policies),
                learner.algorithm,
                experiment.seed,
                placed[name],
            )
            for name, learner in learners.items()
        },
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
    )


def _spaces(adapter: EnvAdapter, agents_of: Mapping[str, Sequence[str]], problems: Problems) -> dict[str, Spaces]:
    """Return the spaces of each policy's agents, which must be the same."""
    found = {}
    for policy, agents in agents_of.items():
        masked = any(adapter.masked(agent) for agent in agents)
        first, *others = (replace(_seat(adapter, agent), masked=masked) for agent in agents)
        found[policy] = first
        problems.extend(
            f"policy {policy!r} plays {agents[0]!r} and {agent!r}, which {_difference(first, spaces)}; "
            "agents of one policy need the same spaces, so give them policies of their own"
            for agent, spaces in zip(agents[1:], others, strict=True)
            if spaces != first
        )
    return found


def _seat(adapter: EnvAdapter, agent: str) -> Spaces:
    return Spaces(adapter.observation_space(agent), adapter.action_space(agent), adapter.masked(agent))


def _fitting(
    adapter: EnvAdapter, players: PolicyAssignment, spaces: Mapping[str, Spaces]
) -> Mapping[str, Sequence[str]]:
    """Return each policy's agents; with a matchmaker, all whose spaces fit."""
    if players.mapping is not None:
        return players.agents
    return {
        policy: [
            agent
            for agent in adapter.agents
            if (adapter.observation_space(agent), adapter.action_space(agent)) == (own.observation, own.action)
            and own.masked >= adapter.masked(agent)
        ]
        for policy, own in spaces.items()
    }


def _stateless(env: Env, adapter: EnvAdapter, policies: Mapping[str, Policy]) -> Iterator[str]:
    needy = [(name, policy) for name, policy in policies.items() if policy.acts_by.capabilities.state]
    if needy and adapter.state_space() is None:
        for name, policy in needy:
            yield (
                f"policy {name!r} ({policy.acts_by.name}) needs the environment's state, and {environment_name(env)} "
                "has no state() with a Box for its state_space; give it one, or use an algorithm that needs none"
            )


def _difference(one: Spaces, other: Spaces) -> str:
    differing = [("see", one.observation, other.observation), ("do", one.action, other.action)]
    return " and ".join(f"{verb} {_apart(a, b)}" for verb, a, b in differing if a != b)


def _apart(one: Any, other: Any) -> str:
    # Spaces may differ only in bounds or dtype, which the short description leaves out.
    short = describe_space(one), describe_space(other)
    return f"{one} and {other}" if short[0] == short[1] else " and ".join(short)


def _policy_problems(name: str, policy: Policy, spaces: Spaces, players: Sequence[str]) -> Iterator[Problem | str]:
    algorithm = policy.acts_by
    subject = f"policy {name!r} ({algorithm.name})"
    acts = True
    for problem in [*renamed_hooks(algorithm), *algorithm.validate(spaces, policy.model)]:
        # Algorithms of users may yield plain sentences.
        if isinstance(problem, str):
            yield f"{subject}: {problem}"
            continue
        found = replace(problem, subject=subject)
        if problem.kind is ProblemKind.CANNOT_ACT:
            acts = False
            found = replace(found, says=f"{problem.says} of agent {players[0]!r}")
            if others := _able(policy, spaces):
                use = " or ".join(filter(None, [", ".join(others[:-1]), *others[-1:]]))
                found = replace(found, reason="", remedy=f"use {use}")
        yield found
    if unplayable := spaces.problems():
        yield from (f"{subject} cannot play agent {players[0]!r}: {problem}" for problem in unplayable)
    # With invalid settings, building a network could fail or take any amount of memory.
    elif not any(setting_problems(policy)):
        yield from (f"{subject}: {problem}" for problem in _parts_problems(policy, spaces, acts))


def _able(policy: Policy, spaces: Spaces) -> list[str]:
    """Return algorithms that could play instead, the most similar first."""
    own = policy.acts_by.capabilities
    able = [one for one in SHIPPED if not one.validate(spaces, policy.model)]
    able.sort(key=lambda one: (one.capabilities.replay != own.replay, one.capabilities.experience != own.experience))
    names = [one.name for one in able]
    return list(dict.fromkeys([*names[:_MOST_NAMED], *(["ppo"] if "ppo" in names else [])]))


def _parts_problems(policy: Policy, spaces: Spaces, acts: bool) -> Sequence[str]:
    try:
        if policy.acts_by.capabilities.learns:
            torso = functools.partial(build_torso, spaces, policy.model, torch.Generator().manual_seed(0))
            actor = functools.partial(policy.acts_by.actor, spaces, policy.model, 0)
            build = actor if acts else torso
            # Counting builds the network without memory; only a network that needs memory is built a second time.
            if parameters_of(build) is None:
                build()
        elif acts:
            policy.acts_by.actor(spaces, policy.model, 0)
    except ConfigInvalid as error:
        return error.problems
    except Exception as error:  # noqa: BLE001  build() of a model of the user's own may raise anything
        return [f"its network ({type(policy.model).__name__}) cannot be built: {raised(error)}"]
    return ()


def _window_problems(learner: LearnerSpec, spec: RunSpec) -> Iterator[str]:
    n_step = getattr(learner.algorithm, "n_step", 1)
    if n_step > spec.ticks:
        yield (
            f"{subject_of(learner)} sums rewards over n_step={n_step} decisions, but a fragment "
            f"has at most {spec.ticks} of each agent (rollouts.fragment_env_steps={spec.fragment_env_steps} for "
            f"{spec.num_envs} envs on {spec.num_workers} workers); raise rollouts.fragment_env_steps or lower n_step"
        )


def _aims(
    experiment: Experiment, policies: Mapping[str, Policy], learners: Mapping[str, LearnerConfig]
) -> Iterator[str]:
    """Yield a problem if no policy learns, and if nothing ends the run."""
    if policies and not learners:
        names = ", ".join(f"{name!r} ({policy.acts_by.name})" for name, policy in policies.items())
        yield f"no policy of this run learns: {names}; give one an algorithm that does, e.g. ppo"
    stop = experiment.stop
    own = all(one.stop.agent_steps is not None or one.stop.return_mean is not None for one in learners.values())
    if stop.env_steps is None and stop.time_s is None and not stop.policies and not (learners and own):
        yield "nothing ends this run; set stop.env_steps, stop.time_s or stop.policies.<id>.return_mean"
