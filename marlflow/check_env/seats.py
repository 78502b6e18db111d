"""Groups of agents, policy mappings for random episodes, and which algorithms can play each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.scripted import Random
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.check_env.outcome import Masks
from marlflow.env import EnvAdapter, spaces_of
from marlflow.policy.actor import Actor
from marlflow.policy.recurrent import GRU
from marlflow.policy.torso import CNN, MLP, TorsoConfig
from marlflow.sampling.mapping import ByGroup, group


@dataclass(frozen=True)
class SeatGroup:
    """Agents of one name with equal spaces."""

    name: str
    agents: tuple[str, ...]
    spaces: Spaces
    masks: Masks


@dataclass(frozen=True)
class _ByAgent:
    """Maps known agents to their policies, and agents that appear later by their names."""

    known: Mapping[str, str]
    by_group: ByGroup

    def __call__(self, agent: str) -> str | None:
        return self.known.get(agent) or self.by_group(agent)


@dataclass(frozen=True)
class Seats:
    """The groups; each declared agent has a policy of its own, so that its rewards are compared separately."""

    groups: tuple[SeatGroup, ...]
    declared: bool
    has_tasks: bool
    reproducible: bool = True
    parallel: bool = True

    @property
    def mapping(self) -> Mapping[str, str] | _ByAgent:
        """Policy mapping of a rollout worker, with a policy for each agent."""
        if not self.declared:
            return self._by_name
        return {agent: agent for seat_group in self.groups for agent in seat_group.agents}

    @property
    def by_group(self) -> Mapping[str, str] | _ByAgent:
        """Policy mapping with a policy for each group."""
        return self._group_of if self.declared else self._by_name

    @property
    def _group_of(self) -> Mapping[str, str]:
        return {agent: seat_group.name for seat_group in self.groups for agent in seat_group.agents}

    @property
    def _by_name(self) -> _ByAgent:
        return _ByAgent(self._group_of, ByGroup(tuple(seat_group.name for seat_group in self.groups)))

    @property
    def spaces(self) -> dict[str, Spaces]:
        """Spaces of each policy in `mapping`."""
        if not self.declared:
            return {seat_group.name: seat_group.spaces for seat_group in self.groups}
        return {agent: seat_group.spaces for seat_group in self.groups for agent in seat_group.agents}

    def policy_of(self, agent: str) -> str:
        """Return the policy of `agent`."""
        return agent if self.declared else self._group_of.get(agent, group(agent))

    def policies(self, seat_group: SeatGroup) -> tuple[str, ...]:
        """Return the policies of a group."""
        return seat_group.agents if self.declared else (seat_group.name,)


def seats_of(adapter: EnvAdapter, env: Any, state: gym.Box | None = None) -> Seats:
    """Return the groups of `env`; `state` is the space of its global state, if any."""
    num_agents = len(adapter.agents) if adapter.declared else 0
    variants_by_name: dict[str, list[tuple[list[str], Spaces]]] = {}
    for agent in adapter.agents:
        spaces = spaces_of(adapter, agent, state, num_agents)
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


_RANDOM = Random()
LEARNING = tuple(algorithm.name for algorithm in SHIPPED)


@dataclass(frozen=True)
class Suitable:
    """The reason why each algorithm cannot be used, by name ("" if it can), and an untrained `actor`.

    `network` describes the actor's model. `actor` is None if no learning algorithm can be used.
    """

    reasons: Mapping[str, str]
    actor: Actor | None
    network: str


def suitable(spaces: Spaces, has_tasks: bool) -> Suitable:
    """Check every algorithm; `has_tasks`: whether the environment is a family of tasks."""
    reasons = {algorithm.name: _problems(algorithm, spaces, has_tasks) for algorithm in (*SHIPPED, _RANDOM)}
    usable = [algorithm for algorithm in SHIPPED if not reasons[algorithm.name]]
    if not reasons[_RANDOM.name]:
        reasons[_RANDOM.name] = _unbuildable(spaces)
    if not usable:
        return Suitable(reasons, None, "random actions")
    models: dict[str, TorsoConfig] = {"CNN": CNN(), "MLP 64x64": MLP()} if _is_image(spaces) else {"MLP 64x64": MLP()}
    # Only one algorithm's network is built: spaces that no network supports rule out all of them.
    for network, model in models.items():
        try:
            return Suitable(reasons, usable[0].actor(spaces, model, 0), network)
        except ConfigInvalid as error:
            reason = "; ".join(error.problems)
    return Suitable({**reasons, **{algorithm.name: reason for algorithm in usable}}, None, "random actions")


def _problems(algorithm: Algorithm, spaces: Spaces, has_tasks: bool) -> str:
    if algorithm.capabilities.tasks and not has_tasks:
        return 'adapts to tasks, and the environment has none (metadata["tasks"])'
    model = GRU() if algorithm.capabilities.memory == "needed" else MLP()
    problems = algorithm.validate(spaces, model)
    return "; ".join(problem if isinstance(problem, str) else str(replace(problem, subject="")) for problem in problems)


def _unbuildable(spaces: Spaces) -> str:
    try:
        _RANDOM.actor(spaces, MLP(), 0)
    except ConfigInvalid as error:
        return "; ".join(error.problems)
    return ""


def _is_image(spaces: Spaces) -> bool:
    space = spaces.observation
    return isinstance(space, gym.Box) and space.dtype == np.uint8 and len(space.shape) == 3
