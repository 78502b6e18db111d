"""The agents of an environment: their declared names, slots and spaces, and action masks apart from observations."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import enumerated
from marlflow.base.spaces import DISCRETE_KINDS
from marlflow.env.episode_location import EpisodeLocation
from marlflow.env.masking import MASK, MaskedView, joined


class AgentSlots:
    """Assigns each agent of `env` (AEC or Parallel) a slot, its index in `agents`."""

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        self._env, self._location = env, location
        declared = getattr(env, "possible_agents", None)
        self.declared = declared is not None
        self.agents: list[str] = []
        self.slots: dict[str, int] = {}
        self.observation_spaces: list[spaces.Space[Any]] = []
        self.action_spaces: list[spaces.Space[Any]] = []
        self.masked: list[bool] = []
        self._views: list[MaskedView] = []
        # The agents with a mask in the first infos.
        self._info_masked: set[str] = set()
        for agent in declared or ():
            self._add(agent)

    def slot(self, agent: str) -> int:
        """Return the slot of `agent`, registering new agents unless `possible_agents` is declared."""
        slot = self.slots.get(agent)
        if slot is not None:
            return slot
        if self.declared:
            known = enumerated([repr(name) for name in self.agents])
            raise self._location.broken(f"agent {agent!r} is not one of possible_agents ({known})", agent)
        return self._add(agent)

    def _add(self, agent: str) -> int:
        if problem := name_problem(agent, self.slots):
            raise self._location.broken(problem)
        action = self._env.action_space(agent)
        view = MaskedView(self._env.observation_space(agent), action)
        self.slots[agent] = len(self.agents)
        self.agents.append(agent)
        self.observation_spaces.append(view.space)
        self.action_spaces.append(action)
        self.masked.append(view.is_inside or self._has_info_mask(agent, action))
        self._views.append(view)
        return self.slots[agent]

    def forget(self) -> None:
        """Free all slots, between episodes."""
        self.slots.clear()
        for by_slot in self._lists():
            by_slot.clear()

    def _lists(self) -> tuple[list[Any], ...]:
        """Return all lists by slot."""
        of_spaces: tuple[list[Any], ...] = (self.observation_spaces, self.action_spaces)
        return (self.agents, *of_spaces, self.masked, self._views)

    def seat(self, agents: Sequence[str]) -> None:
        """Give `agents` the first slots, in order; raises the environment's error for an agent without spaces."""
        order = dict.fromkeys((*agents, *self.agents))
        for agent in order:
            if agent not in self.slots:
                self._add(agent)
        # Slots are renumbered, so every list by slot changes its order.
        before = [self.slots[agent] for agent in order]
        for by_slot in self._lists():
            by_slot[:] = [by_slot[slot] for slot in before]
        self.slots.update({agent: slot for slot, agent in enumerate(order)})

    def find_info_masks(self, infos: Mapping[str, Any]) -> None:
        """Expect masks for the agents that have one in the first `infos`, and then for all Discrete agents."""
        self._info_masked = {agent for agent in self.slots if MASK in (infos.get(agent) or ())}
        for slot, (agent, space) in enumerate(zip(self.agents, self.action_spaces, strict=True)):
            self.masked[slot] = self._views[slot].is_inside or self._has_info_mask(agent, space)

    def _has_info_mask(self, agent: str, action: spaces.Space[Any]) -> bool:
        if isinstance(action, spaces.Discrete):
            return bool(self._info_masked)
        return agent in self._info_masked and isinstance(action, DISCRETE_KINDS)

    def split(self, slot: int, observation: Any, info: Mapping[str, Any] | None) -> tuple[Any, Array | None]:
        """Return the observation without its mask, and the mask."""
        view = self._views[slot]
        if view.is_inside:
            try:
                return view.bare(observation), joined(observation[MASK])
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                reason = f"the observation has no {MASK!r} with it, which its space declares"
                raise self._location.broken(reason, self.agents[slot]) from error
        try:
            mask = info.get(MASK) if info else None
        except AttributeError as error:
            reason = f"an info is a mapping, and that which came is a {type(info).__name__}"
            raise self._location.broken(reason, self.agents[slot]) from error
        if mask is not None and not self.masked[slot]:
            agent = self.agents[slot]
            raise self._location.broken("info['action_mask'] came, but reset() gave no agent one", agent)
        return observation, joined(mask)

    def split_final(self, slot: int, observation: Any, info: Mapping[str, Any] | None) -> tuple[Any, Array | None]:
        """Split a final observation, which may be missing; an all-zero mask becomes None."""
        if observation is None:
            return None, None
        observation, mask = self.split(slot, observation, info)
        return observation, (mask if mask is not None and np.any(mask) else None)

    def check(self, slot: int, observation: Any) -> None:
        """Raise EnvironmentFailed if a Box observation's shape is not its space's."""
        space = self.observation_spaces[slot]
        if isinstance(space, spaces.Box) and np.shape(observation) != space.shape:
            reason = f"an observation of shape {space.shape} was declared, one of shape {np.shape(observation)} came"
            raise self._location.broken(reason, self.agents[slot])


def declared_agents(env: Any) -> Sequence[str]:
    """Return `possible_agents`; raises ConfigInvalid if there are none, or their names cannot be."""
    agents = list(getattr(env, "possible_agents", ()))
    if not agents:
        raise ConfigInvalid(["the environment does not say beforehand which agents it has (possible_agents)"])
    where = _PLACES if isinstance(env, AECEnv) else _WHERE
    for number, agent in enumerate(agents):
        if problem := name_problem(agent, agents[:number], where):
            raise ConfigInvalid([problem])
    return agents


_PLACES = "possible_agents, agents and all dicts by agent"
_WHERE = f"{_PLACES}, or put wrappers=named_agents first"


def name_problem(agent: object, others: Container[str], where: str = _WHERE) -> str | None:
    """Return why `agent` cannot be the name of an agent besides `others`; None if it can. `where` to change it."""
    if not isinstance(agent, str):
        name = f"agent_{agent if hasattr(agent, '__index__') else 0}"
        return (
            f"agent {agent!r} is of type {type(agent).__name__}, and agents are named by text; give it a name such as "
            f"{name!r}, in {where}"
        )
    return f"two agents are named {agent!r}: give each a name of its own" if agent in others else None


def matching_agents(env: Any, pattern: str) -> list[str]:
    """Return the declared agents whose names match `pattern`, such as `adversary_*`; raises ConfigInvalid if none."""
    declared = declared_agents(env)
    matching = [agent for agent in declared if fnmatchcase(agent, pattern)]
    if not matching:
        raise ConfigInvalid([f"agents={pattern!r} matches none of {enumerated(declared)}"])
    return matching


@cache
def group_of(agent: str) -> str:
    """Return an agent's name without its number.

    >>> group_of("adversary_10"), group_of("agent")
    ('adversary', 'agent')
    """
    return re.sub(r"_\d+$", "", agent)
