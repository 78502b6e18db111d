"""N independent pendulums, one per agent: gymnasium's Pendulum swing-up, with continuous actions."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.spaces import Box
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import parallel_to_aec

from marlflow.base.arrays import Array


class PendulumTeam(ParallelEnv[str, Array, Array]):
    """Agents `pendulum_0`, `pendulum_1`, ...; reward from -16.3 to 0 per env step, 0 upright and at rest.

    Observations are cosine and sine of the angle from upright and the angular velocity (rad/s): float32 [3]; actions
    are torques from -2 to 2 N m: float32 [1]. All agents are truncated after `max_cycles` env steps.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "pendulum_team_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 20,
        "is_parallelizable": True,
    }

    def __init__(self, num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None) -> None:
        if num_agents < 1 or max_cycles < 1:
            raise ValueError(f"num_agents and max_cycles must be at least 1, not {num_agents} and {max_cycles}")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', not {render_mode!r}")
        self.render_mode = render_mode
        self.max_cycles = max_cycles
        self.possible_agents = [f"pendulum_{number}" for number in range(num_agents)]
        self.agents: list[str] = []
        self._pendulums = {agent: PendulumEnv(render_mode=render_mode) for agent in self.possible_agents}
        self._random = np.random.default_rng()
        self._cycles = 0

    def observation_space(self, agent: str) -> Box:
        return self._pendulums[agent].observation_space  # type: ignore[return-value]

    def action_space(self, agent: str) -> Box:
        return self._pendulums[agent].action_space  # type: ignore[return-value]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        del options
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self._cycles = 0
        observations = {}
        for agent, pendulum in self._pendulums.items():
            pendulum.np_random = self._random
            observations[agent] = pendulum.reset()[0]
        return observations, {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Array]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        self._cycles += 1
        observations, rewards = {}, {}
        for agent in self.agents:
            observation, reward, *_ = self._pendulums[agent].step(actions[agent])
            observations[agent], rewards[agent] = observation, float(reward)
        is_last = self._cycles >= self.max_cycles
        terminations, truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, is_last)
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agents = [] if is_last else self.agents
        return observations, rewards, terminations, truncations, infos

    def render(self) -> Array:
        return np.concatenate([np.asarray(pendulum.render()) for pendulum in self._pendulums.values()])

    def close(self) -> None:
        for pendulum in self._pendulums.values():
            pendulum.close()


def parallel_env(num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None) -> PendulumTeam:
    """Make the team as a ParallelEnv."""
    return PendulumTeam(num_agents, max_cycles, render_mode)


def env(num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None) -> AECEnv[str, Array, Array | None]:
    """Make the team as an AECEnv."""
    return parallel_to_aec(PendulumTeam(num_agents, max_cycles, render_mode))
