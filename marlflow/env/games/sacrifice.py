"""A cooperative game in which one agent's death is worth more than its life, for tests of team algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.alike_agents import AlikeAgents

_OPENER, _RUNNER = "opener", "runner"
_OPEN = 1


class Sacrifice(AlikeAgents):
    """One agent can open a door and die of it; the other then walks through and gets 10. Else both get 1.

    The best team return is 10, but the opener's own return for opening is 0 instead of 1: without credit beyond its
    death (`bootstrap_at_death`), the team stays at 2. Only the opener's first action matters.
    """

    metadata = {"name": "sacrifice", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self) -> None:
        super().__init__([_OPENER, _RUNNER], spaces.Box(0.0, 1.0, (2,), np.float32), spaces.Discrete(2))
        self.state_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self._is_open = False

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._is_open = list(self.possible_agents), False
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        before = self.agents
        if self._is_open:
            ended, rewards = [_RUNNER], {_RUNNER: 10.0}
        elif actions[_OPENER] == _OPEN:
            self._is_open = True
            ended, rewards = [_OPENER], dict.fromkeys(before, 0.0)
        else:
            ended, rewards = list(before), dict.fromkeys(before, 1.0)
        self.agents = [agent for agent in before if agent not in ended]
        terminations = {agent: agent in ended for agent in before}
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in before}
        return self._observations(before), rewards, terminations, dict.fromkeys(before, False), infos

    def state(self) -> Array:
        """Return whether the door is open, and whether the opener lives."""
        return np.array([self._is_open, _OPENER in self.agents], np.float32)

    def _observations(self, agents: list[str]) -> dict[str, Array]:
        return {agent: np.array([self._is_open, agent == _OPENER], np.float32) for agent in agents}


def parallel_env() -> Sacrifice:
    """Make the game as a ParallelEnv."""
    return Sacrifice()


def env() -> AECEnv[str, Array, int | None]:
    """Make the game as an AECEnv."""
    return parallel_to_aec(Sacrifice())
