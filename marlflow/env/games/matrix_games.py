"""Cooperative matrix games of two agents, whose solutions are known, for tests of team algorithms.

Sources: climbing and penalty, Claus and Boutilier (1998, "The dynamics of reinforcement learning in cooperative
multiagent systems"); two_step, Rashid et al. (2018, arXiv:1803.11485, section 5.1); qtran, Son et al. (2019,
arXiv:1905.05408, section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.base.sentences import meant
from marlflow.env.games.alike_agents import AlikeAgents

_AGENTS = ("agent_0", "agent_1")
_TEAM = "team"

Payoffs = Sequence[Sequence[Sequence[float]]]


def _games(penalty: float) -> dict[str, Payoffs]:
    """Return the matrices of each game: rows are actions of agent_0, columns are actions of agent_1."""
    return {
        "climbing": [[[11, -30, 0], [-30, 7, 0], [0, 6, 5]]],
        "penalty": [[[penalty, 0, 10], [0, 2, 0], [10, 0, penalty]]],
        "both": [[[0, 0], [0, 10]]],
        "qtran": [[[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]],
        "two_step": [[[7, 7], [7, 7]], [[0, 1], [1, 8]]],
    }


class MatrixGame(AlikeAgents):
    """Two agents choose a row and a column of a payoff matrix, and both receive its entry; then the episode terminates.

    With several matrices, the first action of agent_0 chooses one of them, without reward. Observations and state are
    the game's state, one-hot (the choice of a matrix, if there is one, then each matrix); observations also contain the
    agent, one-hot. With `as_one_agent`, one agent chooses all actions together: its action is
    row * number of columns + column.
    """

    metadata = {"name": "matrix_game", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, payoffs: Payoffs, as_one_agent: bool = False) -> None:
        self._payoffs = np.array(payoffs, np.float64)
        matrices, rows, columns = self._payoffs.shape
        if matrices > 1 and rows != matrices:
            raise ValueError(
                f"{matrices} matrices need as many rows, of which the first action chooses one, not {rows}"
            )
        self._columns, self._is_joint = columns, as_one_agent
        agents = (_TEAM,) if as_one_agent else _AGENTS
        actions = [rows * columns] if as_one_agent else [rows, columns]
        self._action_spaces = {agent: spaces.Discrete(count) for agent, count in zip(agents, actions, strict=True)}
        self._first = 1 if matrices > 1 else 0
        self._states = matrices + self._first
        self.state_space = spaces.Box(0.0, 1.0, (self._states,), np.float32)
        super().__init__(agents, spaces.Box(0.0, 1.0, (self._states + len(agents),), np.float32))
        self._state = 0

    @property
    def payoffs(self) -> Array:
        """The matrices, float64 [matrices, rows, columns]."""
        return self._payoffs

    def action_space(self, agent: str) -> Any:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._state = list(self.possible_agents), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        before = list(self.agents)
        row, column = self._choices(actions)
        is_choice = self._state < self._first
        if is_choice:
            self._state = self._first + row
            reward = 0.0
        else:
            reward = float(self._payoffs[self._state - self._first, row, column])
            self.agents = []
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in before}
        rewards, truncations = dict.fromkeys(before, reward), dict.fromkeys(before, False)
        return self._observations(), rewards, dict.fromkeys(before, not is_choice), truncations, infos

    def state(self) -> Array:
        """Return the game's state, one-hot."""
        return np.eye(1, self._states, self._state, dtype=np.float32).reshape(-1)

    def _choices(self, actions: dict[str, Any]) -> tuple[int, int]:
        if self._is_joint:
            both = int(actions[_TEAM])
            return both // self._columns, both % self._columns
        row, column = (int(actions[agent]) for agent in _AGENTS)
        return row, column

    def _observations(self) -> dict[str, Array]:
        ids = np.eye(len(self.possible_agents), dtype=np.float32)
        return {
            agent: np.concatenate([self.state(), own]) for agent, own in zip(self.possible_agents, ids, strict=True)
        }


def parallel_env(game: str = "climbing", penalty: float = -100.0, as_one_agent: bool = False) -> MatrixGame:
    """Make a game as a ParallelEnv: climbing, penalty, both, qtran or two_step.

    `penalty` is two of the payoffs of the game of that name. Raises ValueError if there is no such game.
    """
    games = _games(penalty)
    if game not in games:
        raise ValueError(f"there is no matrix game {game!r}{meant(game, games, 'the games are')}")
    return MatrixGame(games[game], as_one_agent)


def env(game: str = "climbing", penalty: float = -100.0, as_one_agent: bool = False) -> AECEnv[str, Array, int | None]:
    """Make a game as an AECEnv; arguments are as in parallel_env."""
    return parallel_to_aec(parallel_env(game, penalty, as_one_agent))
