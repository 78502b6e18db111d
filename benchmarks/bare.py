"""Step an environment alone: the loop of PettingZoo's documentation with random legal actions, without marlflow.

Actions are drawn as cheaply as Python allows, so that they do not slow the environment: one number of
`random.random` picks from the legal entries of the mask, from a list of all actions made once, or, for a Box, from
1,024 samples made once. Dead agents are stepped with None, and an episode that has ended is reset.

`seeded`: every episode is reset with its own seed, as a rollout worker must, so that the environment does the same
work. Otherwise only the first reset has a seed, as in a quick script; some environments reset much faster then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, NamedTuple

from gymnasium import spaces
from pettingzoo import ParallelEnv


class Played(NamedTuple):
    """Numbers of steps, and their seconds of wall and CPU time; in AEC a living agent's turn is an env step."""

    env_steps: int
    agent_steps: int
    episodes: int
    seconds: float
    cpu_s: float

    @property
    def env_rate(self) -> float:
        """Env steps per second."""
        return self.env_steps / self.seconds

    @property
    def agent_rate(self) -> float:
        """Agent steps per second."""
        return self.agent_steps / self.seconds


class Bare:
    """One environment, made once; `play` runs whole episodes for at least some seconds."""

    def __init__(self, env: Any, seeded: bool) -> None:
        self._env, self._seeded = env, seeded
        self._episode = 0
        self._uniform = random.Random(0).random
        self._reset()
        self._options = {agent: _options(env.action_space(agent)) for agent in env.possible_agents}
        self._play: Callable[[float], Played] = self._parallel if isinstance(env, ParallelEnv) else self._aec

    def play(self, seconds: float) -> Played:
        """Play episodes until `seconds` are over."""
        return self._play(seconds)

    def _reset(self) -> Any:
        self._episode += 1
        return self._env.reset(seed=self._episode if self._seeded or self._episode == 1 else None)

    def _aec(self, seconds: float) -> Played:
        env, uniform, options, turns = self._env, self._uniform, self._options, 0
        first, began, began_cpu = self._episode, perf_counter(), process_time()
        while perf_counter() - began < seconds:
            self._reset()
            for agent in env.agent_iter():
                observation, _, terminated, truncated, _ = env.last()
                if terminated or truncated:
                    action = None
                else:
                    turns += 1
                    masked = isinstance(observation, dict) and "action_mask" in observation
                    legal = observation["action_mask"].nonzero()[0] if masked else options[agent]
                    action = legal[int(uniform() * len(legal))]
                env.step(action)
        spent, spent_cpu = perf_counter() - began, process_time() - began_cpu
        return Played(turns, turns, self._episode - first, spent, spent_cpu)

    def _parallel(self, seconds: float) -> Played:
        env, uniform, options, env_steps, agent_steps = self._env, self._uniform, self._options, 0, 0
        first, began, began_cpu = self._episode, perf_counter(), process_time()
        while perf_counter() - began < seconds:
            self._reset()
            while env.agents:
                actions = {}
                for agent in env.agents:
                    legal = options[agent]
                    actions[agent] = legal[int(uniform() * len(legal))]
                env.step(actions)
                env_steps += 1
                agent_steps += len(actions)
        spent, spent_cpu = perf_counter() - began, process_time() - began_cpu
        return Played(env_steps, agent_steps, self._episode - first, spent, spent_cpu)


def _options(space: spaces.Space[Any]) -> list[Any]:
    """Return the actions to pick from if there is no mask."""
    if isinstance(space, spaces.Discrete):
        return [space.dtype.type(number) for number in range(int(space.start), int(space.start + space.n))]
    space.seed(0)
    return [space.sample() for _ in range(1024)]
