"""Agent groups of a trial, and policy mappings for random episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces as gym

from marlflow.base.spaces import Spaces
from marlflow.check_env.outcome import Masks
from marlflow.env import EnvAdapter
from marlflow.sampling.mapping import ByGroup, group


@dataclass(frozen=True)
class SeatGroup:
    """Agents of one name with equal spaces."""

    name: str
    agents: tuple[str, ...]
    spaces: Spaces
    masks: Masks


@dataclass(frozen=True)
class Seats:
    """The groups; each declared agent has a policy of its own, so that its rewards are compared separately."""

    groups: tuple[SeatGroup, ...]
    declared: bool
    has_tasks: bool
    reproducible: bool = True
    parallel: bool = True

    @property
    def mapping(self) -> Mapping[str, str] | ByGroup:
        """Policy mapping of a rollout worker, with a policy for each agent."""
        if not self.declared:
            return self._by_name
        return {agent: agent for seat_group in self.groups for agent in seat_group.agents}

    @property
    def by_group(self) -> Mapping[str, str] | ByGroup:
        """Policy mapping with a policy for each group."""
        if not self.declared:
            return self._by_name
        return {agent: seat_group.name for seat_group in self.groups for agent in seat_group.agents}

    @property
    def _by_name(self) -> ByGroup:
        # Agents may appear later, so the policy is found by the agent's name.
        return ByGroup(tuple(seat_group.name for seat_group in self.groups))

    @property
    def spaces(self) -> dict[str, Spaces]:
        """Spaces of each policy in `mapping`."""
        if not self.declared:
            return {seat_group.name: seat_group.spaces for seat_group in self.groups}
        return {agent: seat_group.spaces for seat_group in self.groups for agent in seat_group.agents}

    def policy_of(self, agent: str) -> str:
        """Return the policy of `agent`."""
        return agent if self.declared else group(agent)

    def policies(self, seat_group: SeatGroup) -> tuple[str, ...]:
        """Return the policies of a group."""
        return seat_group.agents if self.declared else (seat_group.name,)


def seats_of(adapter: EnvAdapter, env: Any, state: gym.Box | None = None) -> Seats:
    """Return the groups of `env`; `state` is the space of its global state, if any."""
    num_agents = len(adapter.agents) if adapter.declared else 0
    variants_by_name: dict[str, list[tuple[list[str], Spaces]]] = {}
    for agent in adapter.agents:
        observation, action = adapter.observation_space(agent), adapter.action_space(agent)
        spaces = Spaces(observation, action, adapter.masked(agent), state, num_agents)
        variants = variants_by_name.setdefault(group(agent), [])
        same = next((agents for agents, variant in variants if variant == spaces), None)
        if same is None:
            variants.append(([agent], spaces))
        else:
            same.append(agent)
    # Agents of one name but different spaces need different policies, and become groups of their own.
    groups = [
        SeatGroup(
            name if len(variants) == 1 else ", ".join(agents), tuple(agents), spaces, _masks(adapter, env, agents[0])
        )
        for name, variants in variants_by_name.items()
        for agents, spaces in variants
    ]
    return Seats(tuple(groups), adapter.declared, adapter.has_tasks, adapter.reproducible, adapter.parallel)


def _masks(adapter: EnvAdapter, env: Any, agent: str) -> Masks:
    if not adapter.masked(agent):
        return "none"
    space = env.observation_space(agent)
    inside = isinstance(space, gym.Dict) and "action_mask" in space.spaces
    return "in the observation" if inside else "in the info"
