"""N independent cart-poles, one per agent: the environment of RLlib Flow's multi-agent example.

Physics: gymnasium's CartPole (Barto, Sutton & Anderson, "Neuronlike adaptive elements that can solve difficult learning
control problems", 1983).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import parallel_to_aec

from marlflow.base.arrays import Array


class CartPoleTeam(ParallelEnv[str, Array, int]):
    """Agents `cart_0`, `cart_1`, ... with reward 1 per env step; actions push left (0) or right (1).

    Observations are position, velocity, angle, angular velocity: float32 [4], or [2] without `velocities`. An agent
    terminates when its pole falls and is truncated after `max_cycles`.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "cartpole_team_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 50,
        "is_parallelizable": True,
    }

    def __init__(
        self, num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None, velocities: bool = True
    ) -> None:
        if num_agents < 1 or max_cycles < 1:
            raise ValueError(f"num_agents and max_cycles must be at least 1, not {num_agents} and {max_cycles}")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', not {render_mode!r}")
        self.render_mode = render_mode
        self.max_cycles = max_cycles
        self.possible_agents = [f"cart_{number}" for number in range(num_agents)]
        self.agents: list[str] = []
        self._carts = {agent: CartPoleEnv(render_mode=render_mode) for agent in self.possible_agents}
        full_space = self._carts[self.possible_agents[0]].observation_space
        # Position, velocity, angle, angular velocity: every second entry is a velocity.
        self._velocities = velocities
        self._visible = slice(None) if velocities else slice(0, None, 2)
        self._observation_space = Box(full_space.low[self._visible], full_space.high[self._visible], dtype=np.float32)  # type: ignore[attr-defined]
        self._random = np.random.default_rng()
        self._cycles = 0

    @property
    def carts(self) -> list[CartPoleEnv]:
        """The cart-poles, by agent."""
        return list(self._carts.values())

    def observation_space(self, agent: str) -> Box:
        del agent
        return self._observation_space

    def action_space(self, agent: str) -> Discrete:
        return self._carts[agent].action_space  # type: ignore[return-value]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        del options
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self._cycles = 0
        observations = {}
        for agent, cart in self._carts.items():
            # One shared generator: with seed + i per cart, neighboring seeds would share initial states.
            cart.np_random = self._random
            observation = cart.reset()[0]
            observations[agent] = observation if self._velocities else observation[self._visible]
        return observations, {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        self._cycles += 1
        is_last = self._cycles >= self.max_cycles
        observations, rewards, terminations, truncations = {}, {}, {}, {}
        for agent in self.agents:
            observation, reward, fell, _, _ = self._carts[agent].step(actions[agent])
            observations[agent] = observation if self._velocities else observation[self._visible]
            rewards[agent] = float(reward)
            terminations[agent] = fell
            truncations[agent] = is_last and not fell
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agents = [] if is_last else [agent for agent in self.agents if not terminations[agent]]
        return observations, rewards, terminations, truncations, infos

    def render(self) -> Array:
        return np.concatenate([np.asarray(cart.render()) for cart in self._carts.values()])

    def close(self) -> None:
        for cart in self._carts.values():
            cart.close()


def parallel_env(
    num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None, velocities: bool = True
) -> CartPoleTeam:
    """Make the team as a ParallelEnv."""
    return CartPoleTeam(num_agents, max_cycles, render_mode, velocities)


def env(
    num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None, velocities: bool = True
) -> AECEnv[str, Array, int | None]:
    """Make the team as an AECEnv."""
    return parallel_to_aec(CartPoleTeam(num_agents, max_cycles, render_mode, velocities))
