"""Open the environment of an experiment once, and assign its agents to policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import needs_state
from marlflow.base.errors import Problems
from marlflow.base.spaces import Spaces, describe_space
from marlflow.checks.environment_needs import critic_environment_problems, joint_stream_problems
from marlflow.checks.info_columns import info_environment_problems
from marlflow.config.experiment import Experiment
from marlflow.config.league import assign_league
from marlflow.config.policy_assignment import PolicyAssignment, assign_policies, assigned_learner_problems
from marlflow.config.records import inspected_environment, recorded_mapping
from marlflow.env import EnvAdapter, spaces_of


@dataclass(frozen=True, slots=True)
class InspectedEnv:
    """The environment's agents and spaces, as the checks read them.

    `fitting` lists the agents of each policy, with a matchmaker all that it could play. `seats` is None if the
    environment does not declare its agents.
    """

    agents: tuple[str, ...]
    players: PolicyAssignment
    spaces: Mapping[str, Spaces]
    fitting: Mapping[str, Sequence[str]]
    has_tasks: bool
    reproducible: bool
    state_space: gym.Box | None
    seats: Mapping[str, Spaces] | None


def inspect_env(experiment: Experiment, problems: Problems) -> InspectedEnv:
    """Open the environment and assign its agents; append to `problems`."""
    with inspected_environment(experiment, problems) as adapter:
        players = _assigned(experiment, adapter, problems)
        policies = players.policies
        problems += assigned_learner_problems(experiment, policies)
        spaces = _spaces(adapter, players.agents, problems)
        narrowed = players.mapping is not None or experiment.league is not None
        fitting = players.agents if narrowed else _fitting(adapter, spaces)
        problems += critic_environment_problems(experiment.env, adapter, policies)
        problems += info_environment_problems(experiment, adapter, policies, players.agents)
        problems += joint_stream_problems(experiment, adapter, policies)
        needy = {name for name, policy in policies.items() if needs_state(policy.acts_by)}
        state_space = adapter.state_space() if needy else None
        return InspectedEnv(
            agents=tuple(adapter.agents),
            players=players,
            spaces={name: replace(own, state=state_space if name in needy else None) for name, own in spaces.items()},
            fitting=fitting,
            has_tasks=adapter.has_tasks,
            reproducible=adapter.reproducible,
            state_space=state_space,
            seats={agent: _seat(adapter, agent) for agent in adapter.agents} if adapter.declared else None,
        )


def _assigned(experiment: Experiment, adapter: EnvAdapter, problems: Problems) -> PolicyAssignment:
    if experiment.league is not None:
        return assign_league(experiment, experiment.league, adapter, problems)
    return assign_policies(experiment, adapter, problems, recorded_mapping(experiment))


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
    return spaces_of(adapter, agent, num_agents=len(adapter.agents) if adapter.declared else 0)


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
