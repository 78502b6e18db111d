"""A substitute environment for checks of spaces."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from pettingzoo import ParallelEnv

from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces


def observation_rows(spaces: Spaces, rows: int) -> Array:
    """Return arbitrary rows of the `obs` column, [rows, ...]: samples of the observation space, the same each time."""
    space = copy.deepcopy(spaces.observation)
    samples = []
    for row in range(rows):
        space.seed(row)
        samples.append(space.sample())
    return spaces.encoder().stack(samples)


class SpacesOnlyEnv(ParallelEnv[str, Any, Any]):
    """A ParallelEnv with given `spaces` by agent and an optional global `state_space`.

    Observations are random, all actions are legal, rewards and the numbers `info_keys` in infos are 0, no agent ends.
    """

    metadata = {"name": "stand_in", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(
        self, spaces: Mapping[str, Spaces], state_space: gym.Box | None = None, info_keys: Collection[str] = ()
    ) -> None:
        self.possible_agents, self._info_keys = list(spaces), info_keys
        self.agents: list[str] = []
        self.state_space = state_space
        # Copied because sampling advances a space's random generator.
        self._spaces = {
            agent: Spaces(copy.deepcopy(own_spaces.observation), copy.deepcopy(own_spaces.action), own_spaces.masked)
            for agent, own_spaces in spaces.items()
        }

    def observation_space(self, agent: str) -> Any:
        spaces = self._spaces[agent]
        if not spaces.masked:
            return spaces.observation
        mask = gym.Box(0, 1, (spaces.mask_width,), np.int8)
        return gym.Dict({"observation": spaces.observation, "action_mask": mask})

    def action_space(self, agent: str) -> Any:
        return self._spaces[agent].action

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        for spaces in self._spaces.values():
            spaces.observation.seed(seed)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        no_ends = dict.fromkeys(self.agents, False)
        return (
            self._observations(),
            dict.fromkeys(self.agents, 0.0),
            no_ends,
            no_ends,
            {agent: dict.fromkeys(self._info_keys, 0.0) for agent in self.agents},
        )

    def state(self) -> Array:
        if self.state_space is None:
            # As PettingZoo's own environments without state do.
            raise NotImplementedError
        return np.zeros(self.state_space.shape, self.state_space.dtype)

    def _observations(self) -> dict[str, Any]:
        observations = {agent: self._spaces[agent].observation.sample() for agent in self.agents}
        for agent in self.agents:
            if self._spaces[agent].masked:
                mask = np.ones(self._spaces[agent].mask_width, np.int8)
                observations[agent] = {"observation": observations[agent], "action_mask": mask}
        return observations
