"""A cooperative game of memory: each agent sees a bit at the start and names it at the end, for tests of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.alike_agents import AlikeAgents


class Recall(AlikeAgents):
    """Each agent sees a bit of its own at env step 0 and names it at env step `delay`; all get 1 if all are right.

    Earlier actions have no effect, and earlier rewards are 0. Observations are the bit (-1 or 1; 0 after env step 0)
    and the time, from 0 to 1. With memory the return is 1, without it at most 2 ** -num_agents in expectation. The
    state contains all bits throughout, and the time.
    """

    metadata = {"name": "recall", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, num_agents: int = 2, delay: int = 5) -> None:
        if num_agents < 1 or delay < 1:
            raise ValueError(f"num_agents and delay must be at least 1, not {num_agents} and {delay}")
        agents = [f"agent_{number}" for number in range(num_agents)]
        super().__init__(agents, spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2))
        self._delay, self._t = delay, 0
        self.state_space = spaces.Box(-1.0, 1.0, (num_agents + 1,), np.float32)
        self._random = np.random.default_rng()
        self._bits = np.zeros(num_agents, np.int64)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._bits = self._random.integers(0, 2, len(self.possible_agents))
        self.agents, self._t = list(self.possible_agents), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        before, is_over = list(self.agents), self._t == self._delay
        named = [int(actions[agent]) for agent in before]
        reward = float(is_over and named == self._bits.tolist())
        if is_over:
            self.agents = []
        self._t = min(self._t + 1, self._delay)
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in before}
        rewards, truncations = dict.fromkeys(before, reward), dict.fromkeys(before, False)
        return self._observations(), rewards, dict.fromkeys(before, is_over), truncations, infos

    def state(self) -> Array:
        """Return all bits, as -1 or 1, and the time."""
        return np.append(2.0 * self._bits - 1.0, self._t / self._delay).astype(np.float32)

    def _observations(self) -> dict[str, Array]:
        shown = 2.0 * self._bits - 1.0 if self._t == 0 else np.zeros(len(self._bits))
        return {
            agent: np.array([bit, self._t / self._delay], np.float32)
            for agent, bit in zip(self.possible_agents, shown, strict=True)
        }


def parallel_env(num_agents: int = 2, delay: int = 5) -> Recall:
    """Make the game as a ParallelEnv; `delay` is in env steps."""
    return Recall(num_agents, delay)


def env(num_agents: int = 2, delay: int = 5) -> AECEnv[str, Array, int | None]:
    """Make the game as an AECEnv."""
    return parallel_to_aec(Recall(num_agents, delay))
