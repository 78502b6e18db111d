"""Who takes part in a trial: groups of agents that one policy could play, and who plays whom in random episodes."""

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
    """Agents of one name that see and do the same."""

    name: str
    agents: tuple[str, ...]
    spaces: Spaces
    masks: Masks


@dataclass(frozen=True)
class Seats:
    """Every declared agent is a policy of its own, so that each has an account; the undeclared share their group's."""

    groups: tuple[SeatGroup, ...]
    declared: bool
    has_tasks: bool

    @property
    def mapping(self) -> Mapping[str, str] | ByGroup:
        """As a rollout worker wants it, for an account of each agent."""
        return {agent: agent for of in self.groups for agent in of.agents} if self.declared else self._late

    @property
    def by_group(self) -> Mapping[str, str] | ByGroup:
        """As a rollout worker wants it, with one policy for each group."""
        return {agent: of.name for of in self.groups for agent in of.agents} if self.declared else self._late

    @property
    def _late(self) -> ByGroup:
        """By names, so that it holds for agents that come late."""
        return ByGroup(tuple(of.name for of in self.groups))

    @property
    def spaces(self) -> dict[str, Spaces]:
        """What the agents of each policy of `mapping` see and do."""
        if not self.declared:
            return {of.name: of.spaces for of in self.groups}
        return {agent: of.spaces for of in self.groups for agent in of.agents}

    def policy_of(self, agent: str) -> str:
        """The policy that plays `agent`."""
        return agent if self.declared else group(agent)

    def policies(self, of: SeatGroup) -> tuple[str, ...]:
        """The policies that play a group."""
        return of.agents if self.declared else (of.name,)


def seats_of(adapter: EnvAdapter, env: Any) -> Seats:
    """The groups of the environment `env`, on which `adapter` was opened."""
    found: dict[str, list[tuple[list[str], Spaces]]] = {}
    for agent in adapter.agents:
        spaces = Spaces(adapter.observation_space(agent), adapter.action_space(agent), adapter.masked(agent))
        variants = found.setdefault(group(agent), [])
        same = next((agents for agents, of in variants if of == spaces), None)
        if same is None:
            variants.append(([agent], spaces))
        else:
            same.append(agent)
    groups = [
        SeatGroup(
            name if len(variants) == 1 else ", ".join(agents), tuple(agents), spaces, _masks(adapter, env, agents[0])
        )
        for name, variants in found.items()
        for agents, spaces in variants
    ]
    return Seats(tuple(groups), adapter.declared, adapter.has_tasks)


def _masks(adapter: EnvAdapter, env: Any, agent: str) -> Masks:
    if not adapter.masked(agent):
        return "none"
    space = env.observation_space(agent)
    inside = isinstance(space, gym.Dict) and "action_mask" in space.spaces
    return "in the observation" if inside else "in the info"
