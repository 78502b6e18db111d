"""Two roads, of which the faster one costs a toll: the best policy under a limit on costs is a mixed strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.alike_agents import AlikeAgents

SLOW, FAST = 0, 1


class Toll(AlikeAgents):
    """Each of `num_agents` cars takes a road once: SLOW pays 1, FAST pays 2 and costs 1; then the episode terminates.

    The cost is `info["cost"]`. Cars do not influence each other, and observe nothing but a 1.

    With at most `limit` cost per car, 0 to 1, the best policy takes the fast road with probability `limit`: its return
    is 1 + `limit`, and a cost of 1 is worth a reward of 1, which is the multiplier. Without a limit, the best is to
    take the fast road always.
    """

    metadata = {"name": "toll", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, num_agents: int = 2) -> None:
        if num_agents < 1:
            raise ValueError(f"num_agents must be at least 1, not {num_agents}")
        cars = [f"car_{number}" for number in range(num_agents)]
        super().__init__(cars, spaces.Box(1.0, 1.0, (1,), np.float32), spaces.Discrete(2))
        self.state_space = spaces.Box(1.0, 1.0, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        cars, self.agents = self.agents, []
        fast = {car: float(int(actions[car]) == FAST) for car in cars}
        rewards, infos = {car: 1.0 + fast[car] for car in cars}, {car: {"cost": fast[car]} for car in cars}
        return self._observations(), rewards, dict.fromkeys(cars, True), dict.fromkeys(cars, False), infos

    def state(self) -> Array:
        """Return a 1, which says nothing."""
        return np.ones(1, np.float32)

    def _observations(self) -> dict[str, Array]:
        return {agent: np.ones(1, np.float32) for agent in self.possible_agents}


def parallel_env(num_agents: int = 2) -> Toll:
    """Make the roads as a ParallelEnv."""
    return Toll(num_agents)


def env(num_agents: int = 2) -> AECEnv[str, Any, Any]:
    """Make the roads as an AECEnv, in which no policy can have a limit on costs."""
    return parallel_to_aec(Toll(num_agents))
