"""Walks along a cliff, with the rule that a shield needs: for tests of shields."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.alike_agents import AlikeAgents

ROWS, COLUMNS = 4, 12
START, GOAL = (ROWS - 1, 0), (ROWS - 1, COLUMNS - 1)
FALL = -100.0
# Up, right, down, left.
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


class CliffWalks(AlikeAgents):
    """Each agent walks along the edge of a cliff of its own, from one end of the lowest row to the other.

    Sutton and Barto, Reinforcement Learning, 2nd edition, example 6.6: each env step is worth -1; a step into the
    cliff, between start and goal, is worth -100 and leads back to the start. An agent terminates at the goal, and is
    truncated after `max_cycles` env steps. Observations are the cell, 0 to 47; actions are up, right, down and left.
    The best return is -13.
    """

    metadata = {"name": "cliff", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, num_agents: int = 2, max_cycles: int = 100) -> None:
        if num_agents < 1 or max_cycles < 1:
            raise ValueError(f"num_agents and max_cycles must be at least 1, not {num_agents} and {max_cycles}")
        agents = [f"walker_{number}" for number in range(num_agents)]
        super().__init__(agents, spaces.Discrete(ROWS * COLUMNS), spaces.Discrete(len(MOVES)))
        self._max_cycles, self._t = max_cycles, 0
        self._cells: dict[str, tuple[int, int]] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._t = list(self.possible_agents), 0
        self._cells = dict.fromkeys(self.agents, START)
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        before, self._t = list(self.agents), self._t + 1
        rewards = {}
        for agent in before:
            cell = moved(self._cells[agent], int(actions[agent]))
            rewards[agent] = FALL if is_cliff(cell) else -1.0
            self._cells[agent] = START if is_cliff(cell) else cell
        terminations = {agent: self._cells[agent] == GOAL for agent in before}
        truncations = {agent: self._t >= self._max_cycles and not terminations[agent] for agent in before}
        self.agents = [agent for agent in before if not (terminations[agent] or truncations[agent])]
        return self._observations(before), rewards, terminations, truncations, {agent: {} for agent in before}

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        return {agent: np.int64(self._cells[agent][0] * COLUMNS + self._cells[agent][1]) for agent in agents}


def moved(cell: tuple[int, int], action: int) -> tuple[int, int]:
    """Return the cell after a move, the same at the border."""
    row, column = cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]
    return min(max(row, 0), ROWS - 1), min(max(column, 0), COLUMNS - 1)


def is_cliff(cell: tuple[int, int]) -> bool:
    """Return whether a step there falls."""
    return cell[0] == ROWS - 1 and cell not in (START, GOAL)


def stays_up(observation: Any, agent: str) -> Array:  # noqa: ARG001  a rule is asked about an agent
    """Return the moves that do not fall, bool [4], for `wrappers=shield`."""
    cell = divmod(int(observation), COLUMNS)
    return np.array([not is_cliff(moved(cell, action)) for action in range(len(MOVES))])


def parallel_env(num_agents: int = 2, max_cycles: int = 100) -> CliffWalks:
    """Make the walks as a ParallelEnv; `max_cycles` is in env steps."""
    return CliffWalks(num_agents, max_cycles)


def env(num_agents: int = 2, max_cycles: int = 100) -> AECEnv[str, Any, int | None]:
    """Make the walks as an AECEnv."""
    return parallel_to_aec(CliffWalks(num_agents, max_cycles))
