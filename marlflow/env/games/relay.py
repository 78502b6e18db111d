"""A cooperative game whose members die and join at random, for tests of team algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.alike_agents import AlikeAgents

_WAITING, _PRESENT, _GONE = range(3)
_RUN = 1
JOINS, DIES_WALKING, DIES_RUNNING, PER_RUNNER = 0.3, 0.1, 0.4, 2.0


class RelayRace(AlikeAgents):
    """Members walk (0) or run (1); in each env step all members present receive 1, and 2 more for each runner.

    After each env step a waiting agent joins with probability 0.3, and a member leaves for good (terminates) with
    probability 0.1 if it walked and 0.4 if it ran. The first agent begins alone; the episode ends when no agent is
    present. The state says of each agent, one-hot, whether it is waiting, present or gone; observations are the state,
    and the agent one-hot.

    Values are known from dynamic programming. Which action is best depends on who is present and who still waits. A
    learner that takes one member's death for the end of the team underestimates them by half.
    """

    metadata = {"name": "relay", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, num_agents: int = 3) -> None:
        if num_agents < 1:
            raise ValueError(f"num_agents must be at least 1, not {num_agents}")
        agents = [f"member_{number}" for number in range(num_agents)]
        super().__init__(agents, spaces.Box(0.0, 1.0, (4 * num_agents,), np.float32), spaces.Discrete(2))
        self.state_space = spaces.Box(0.0, 1.0, (3 * num_agents,), np.float32)
        self._random = np.random.default_rng()
        self._status = np.full(num_agents, _WAITING)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._status[:] = _WAITING
        self._status[0] = _PRESENT
        self.agents = self.possible_agents[:1]
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        before = list(self.agents)
        runners = [agent for agent in before if actions[agent] == _RUN]
        reward = 1.0 + PER_RUNNER * len(runners)
        chances = self._random.random(len(self.possible_agents))
        for number, agent in enumerate(self.possible_agents):
            if self._status[number] == _WAITING and chances[number] < JOINS:
                self._status[number] = _PRESENT
            elif agent in before and chances[number] < (DIES_RUNNING if agent in runners else DIES_WALKING):
                self._status[number] = _GONE
        pairs = zip(self.possible_agents, self._status, strict=True)
        self.agents = [agent for agent, status in pairs if status == _PRESENT]
        seen = [agent for agent in self.possible_agents if agent in before or agent in self.agents]
        rewards = {agent: reward if agent in before else 0.0 for agent in seen}
        terminations = {agent: agent not in self.agents for agent in seen}
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in seen}
        return self._observations(seen), rewards, terminations, dict.fromkeys(seen, False), infos

    def state(self) -> Array:
        """Return for each agent whether it is waiting, present or gone, one-hot."""
        kinds: Array = self._status[:, None] == np.arange(3)
        return kinds.astype(np.float32).reshape(-1)

    def _observations(self, agents: list[str]) -> dict[str, Array]:
        ids = np.eye(len(self.possible_agents), dtype=np.float32)
        return {agent: np.concatenate([self.state(), ids[self.possible_agents.index(agent)]]) for agent in agents}


def parallel_env(num_agents: int = 3) -> RelayRace:
    """Make the game as a ParallelEnv."""
    return RelayRace(num_agents)


def env(num_agents: int = 3) -> AECEnv[str, Array, int | None]:
    """Make the game as an AECEnv."""
    return parallel_to_aec(RelayRace(num_agents))
