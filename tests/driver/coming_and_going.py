"""A Parallel environment in which the agents of a team die, leave early, come late and return, and one never comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from marlflow.base.arrays import Array

EPISODE = 12
ABSENT = "red_3"
ISSUED: dict[str, float] = {"red": 0.0, "blue": 0.0}
"""The rewards issued since `ISSUED` was set to 0, by group."""


class ComingAndGoing(ParallelEnv[str, Array, Any]):
    """Four red agents with masks, of which one never comes, and two blue ones that see other things.

    Agents begin with probability 0.7, and each env step end (dying, or truncated alone) with 0.15 and come with 0.2. An
    episode ends by truncation after 12 env steps, or earlier if no agent is left. Rewards are random.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "coming_and_going_v0"}

    def __init__(self) -> None:
        self.possible_agents = ["red_0", "blue_0", "red_1", "blue_1", "red_2", ABSENT]
        self.agents: list[str] = []
        self.state_space = Box(0, 255, (2,), np.uint8)
        self._random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> Box:
        return Box(-1.0, 1.0, (2 if agent.startswith("red") else 3,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(3 if agent.startswith("red") else 2)

    def state(self) -> Array:
        return np.array([self._step, len(self.agents)], np.uint8)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._step = 0
        self.agents = [agent for agent in self.possible_agents if self._happens(agent, 0.7)] or ["blue_0"]
        return self._see(self.agents), self._infos(self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        playing, self._step = self.agents, self._step + 1
        assert all(actions[agent] != 2 or agent.startswith("blue") or self._legal[agent] for agent in playing)
        over = self._step == EPISODE
        ends = {agent: self._happens(agent, 0.15) for agent in playing}
        terminated = {agent: ends[agent] and self._random.random() < 0.5 for agent in playing}
        truncated = {agent: (ends[agent] or over) and not terminated[agent] for agent in playing}
        living = [agent for agent in playing if not terminated[agent] and not truncated[agent]]
        # An agent that ended in this step may come again in a later one.
        coming = [a for a in self.possible_agents if a not in playing and living and self._happens(a, 0.2)]
        self.agents = [] if over else [*living, *coming]
        rewards = {agent: float(self._random.integers(-3, 4)) for agent in playing}
        for agent, reward in rewards.items():
            ISSUED[agent.partition("_")[0]] += reward
        seen = [*playing, *(agent for agent in self.agents if agent not in playing)]
        return self._see(seen), rewards, terminated, truncated, self._infos(seen)

    def _happens(self, agent: str, probability: float) -> bool:
        return agent != ABSENT and bool(self._random.random() < probability)

    def _see(self, agents: Sequence[str]) -> dict[str, Array]:
        return {a: self._random.uniform(-1.0, 1.0, self.observation_space(a).shape).astype(np.float32) for a in agents}

    def _infos(self, agents: Sequence[str]) -> dict[str, dict[str, Any]]:
        self._legal = {agent: bool(self._random.random() < 0.5) for agent in agents}
        masks = {agent: np.array([1, 1, self._legal[agent]], np.int8) for agent in agents}
        return {a: {"action_mask": masks[a] if a.startswith("red") else np.ones(2, np.int8)} for a in agents}
