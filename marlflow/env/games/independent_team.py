"""Teams of independent copies of a gymnasium environment, one for each agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from pettingzoo import ParallelEnv

from marlflow.base.arrays import Array

Action = TypeVar("Action")


class IndependentTeam(ParallelEnv[str, Array, Action]):
    """Agents `<noun>_0`, `<noun>_1`, ..., each in an environment of its own that `make(render_mode)` returns.

    An agent that terminates leaves; the others are truncated after `max_cycles` env steps.
    """

    def __init__(
        self, noun: str, make: Callable[[str | None], Any], num_agents: int, max_cycles: int, render_mode: str | None
    ) -> None:
        if num_agents < 1 or max_cycles < 1:
            raise ValueError(f"num_agents and max_cycles must be at least 1, not {num_agents} and {max_cycles}")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', not {render_mode!r}")
        self.render_mode = render_mode
        self.max_cycles = max_cycles
        self.possible_agents = [f"{noun}_{number}" for number in range(num_agents)]
        self.agents: list[str] = []
        self._envs = {agent: make(render_mode) for agent in self.possible_agents}
        self._random = np.random.default_rng()
        self._cycles = 0

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return self._envs[agent].observation_space  # type: ignore[no-any-return]

    def action_space(self, agent: str) -> gym.Space[Any]:
        return self._envs[agent].action_space  # type: ignore[no-any-return]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        del options
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self._cycles = 0
        observations = {}
        for agent, one in self._envs.items():
            # One shared generator: with seed + i per agent, neighboring seeds would share initial states.
            one.np_random = self._random
            observations[agent] = self.observed(one.reset()[0])
        return observations, {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Action]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        self._cycles += 1
        is_last = self._cycles >= self.max_cycles
        observations, rewards, terminations, truncations = {}, {}, {}, {}
        for agent in self.agents:
            observation, reward, terminated, _, _ = self._envs[agent].step(actions[agent])
            observations[agent], rewards[agent] = self.observed(observation), float(reward)
            terminations[agent], truncations[agent] = terminated, is_last and not terminated
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agents = [] if is_last else [agent for agent in self.agents if not terminations[agent]]
        return observations, rewards, terminations, truncations, infos

    def observed(self, observation: Array) -> Array:
        """Return what an agent sees of its environment's observation."""
        return observation

    def render(self) -> Array:
        return np.concatenate([np.asarray(one.render()) for one in self._envs.values()])

    def close(self) -> None:
        for one in self._envs.values():
            one.close()
