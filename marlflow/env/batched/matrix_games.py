"""B matrix games at once: the numbers of `marlflow.env.games.matrix_games` and of PettingZoo's rps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.env.batched.protocol import BatchedStep
from marlflow.env.games.matrix_games import parallel_env


class BatchedMatrixGame:
    """Two agents choose a row and a column of a payoff matrix; the arguments are as in `matrix_games.parallel_env`.

    The seed of an episode does not matter.
    """

    turn_based = False

    def __init__(
        self, num_envs: int, game: str = "climbing", penalty: float = -100.0, as_one_agent: bool = False
    ) -> None:
        original = parallel_env(game, penalty, as_one_agent)
        self.num_envs, self.metadata = num_envs, {"name": original.metadata["name"]}
        self.possible_agents = original.possible_agents
        self._is_joint = as_one_agent
        # Rows and columns may differ in number, and so the agents' actions.
        self.groups = {agent: [agent] for agent in original.possible_agents}
        self.observation_space, self.action_space = original.observation_space, original.action_space
        self.state_space = original.state_space
        self._payoffs = original.payoffs
        # With several matrices, the first action chooses one.
        self._first = int(len(self._payoffs) > 1)
        self._one_hot = np.eye(self.state_space.shape[0], dtype=np.float32)
        self._state = np.zeros(num_envs, np.int64)

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        del seeds
        self._state[envs] = 0
        return BatchedStep(self._observe())

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        chosen = [actions[agent][:, 0] for agent in self.possible_agents]
        rows, columns = np.divmod(chosen[0], self._payoffs.shape[2]) if self._is_joint else chosen
        is_choice = self._state < self._first
        # A game that is over has no further matrix.
        matrix = np.clip(self._state - self._first, 0, None)
        rewards = np.where(is_choice, 0.0, self._payoffs[matrix, rows, columns])
        self._state[is_choice] = self._first + rows[is_choice]
        return BatchedStep(
            self._observe(),
            dict.fromkeys(self.groups, rewards[:, None]),
            dict.fromkeys(self.groups, ~is_choice[:, None]),
            {agent: np.zeros((self.num_envs, 1), bool) for agent in self.groups},
        )

    def _observe(self) -> dict[str, Array]:
        states, agents = self.state(), np.eye(len(self.possible_agents), dtype=np.float32)
        return {
            agent: np.concatenate([states, np.broadcast_to(own, (self.num_envs, len(own)))], axis=1)[:, None]
            for agent, own in zip(self.possible_agents, agents, strict=True)
        }

    def state(self) -> Array:
        """Return the games' states, one-hot [B, states]."""
        states: Array = self._one_hot[self._state]
        return states

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {"state": self._state[envs]}

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        self._state[envs] = state["state"]
        return BatchedStep(self._observe())

    def close(self) -> None:
        """Do nothing."""


class RockPaperScissors:
    """Repeated rock, paper, scissors: PettingZoo's rps, whose observation is the opponent's last action.

    The seed of an episode does not matter.
    """

    turn_based = False

    def __init__(self, num_envs: int, num_actions: int = 3, max_cycles: int = 15) -> None:
        if num_actions < 3 or num_actions % 2 == 0:
            raise ValueError(f"num_actions must be odd and at least 3, not {num_actions}")
        self.num_envs, self.metadata = num_envs, {"name": "rps_v2"}
        self.possible_agents = ["player_0", "player_1"]
        self.groups = {"player": self.possible_agents}
        self._num_actions, self._max_cycles = num_actions, max_cycles
        self._observation_space: Any = spaces.Discrete(1 + num_actions)
        self._action_space: Any = spaces.Discrete(num_actions)
        # Each player's last action; `num_actions` before the first.
        self._last = np.zeros((num_envs, 2), np.int64)
        self._cycles = np.zeros(num_envs, np.int64)

    def observation_space(self, agent: str) -> Any:
        del agent
        return self._observation_space

    def action_space(self, agent: str) -> Any:
        del agent
        return self._action_space

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        del seeds
        self._last[envs], self._cycles[envs] = self._num_actions, 0
        return BatchedStep({"player": self._last[:, ::-1]})

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        self._last = actions["player"].copy()
        self._cycles += 1
        # Each action loses against the actions at odd distances above it.
        difference = (self._last[:, 0] - self._last[:, 1]) % self._num_actions
        wins = np.where(difference == 0, 0.0, np.where(difference % 2 == 1, 1.0, -1.0))
        over = np.repeat((self._cycles >= self._max_cycles)[:, None], 2, axis=1)
        return BatchedStep(
            {"player": self._last[:, ::-1]},
            {"player": np.stack([wins, -wins], axis=1)},
            {"player": np.zeros_like(over)},
            {"player": over},
        )

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {"last": self._last[envs], "cycles": self._cycles[envs]}

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        self._last[envs], self._cycles[envs] = state["last"], state["cycles"]
        return BatchedStep({"player": self._last[:, ::-1]})

    def close(self) -> None:
        """Do nothing."""
