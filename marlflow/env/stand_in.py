"""Stands where an environment is known by its agents and their spaces alone: it can be looked at, and not be played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from pettingzoo import ParallelEnv

from marlflow.base.spaces import Spaces


class StandIn(ParallelEnv[str, Any, Any]):
    """Agents with what they see and do: `spaces` by agent. Its observations are arbitrary ones of their spaces."""

    metadata = {"name": "recorded", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, spaces: Mapping[str, Spaces]) -> None:
        self.possible_agents = list(spaces)
        self.agents: list[str] = []
        self._spaces = spaces

    def observation_space(self, agent: str) -> Any:
        """What `agent` sees, and where it has one its action mask."""
        spaces = self._spaces[agent]
        if not spaces.masked:
            return spaces.observation
        mask = gym.Box(0, 1, (spaces.num_actions,), np.int8)
        return gym.Dict({"observation": spaces.observation, "action_mask": mask})

    def action_space(self, agent: str) -> Any:
        """What `agent` does."""
        return self._spaces[agent].action

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """An observation of each agent, any of its space."""
        self.agents = list(self.possible_agents)
        observations = {}
        for agent in self.agents:
            space = self.observation_space(agent)
            space.seed(seed)
            observations[agent] = space.sample()
        return observations, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        """Raises NotImplementedError."""
        raise NotImplementedError("this stands for an environment that is only known from its records")
