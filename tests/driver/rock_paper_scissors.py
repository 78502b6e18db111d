"""Rock, paper, scissors: a game in which what one agent wins the other loses, and no seed changes anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

ROUNDS = 10
PAYOFF = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / ROUNDS


class RockPaperScissors(ParallelEnv[str, Any, int]):
    """Ten rounds of it. player_0 receives a tenth of 1, 0 or -1 for each, and player_1 the opposite."""

    metadata = {"name": "rock_paper_scissors"}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents, self.agents, self.round = ["player_0", "player_1"], [], 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.round = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        won = float(PAYOFF[actions["player_0"], actions["player_1"]])
        self.round += 1
        over, agents = self.round == ROUNDS, self.agents
        self.agents = [] if over else agents
        rewards, infos = {"player_0": won, "player_1": -won}, {agent: {} for agent in agents}
        return self._seen(), rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, False), infos

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 1.0, (1,))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def _seen(self) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, np.ones(1, np.float32))
