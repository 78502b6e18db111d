"""N independent cart-poles, one per agent: the environment of RLlib Flow's multi-agent example.

Physics: gymnasium's CartPole (Barto, Sutton & Anderson, "Neuronlike adaptive elements that can solve difficult learning
control problems", 1983).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box
from pettingzoo import AECEnv
from pettingzoo.utils import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.independent_team import IndependentTeam


class CartPoleTeam(IndependentTeam[int]):
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
        super().__init__("cart", lambda mode: CartPoleEnv(render_mode=mode), num_agents, max_cycles, render_mode)
        # Position, velocity, angle, angular velocity: every second entry is a velocity.
        self._visible = slice(None) if velocities else slice(0, None, 2)
        full_space = self._envs[self.possible_agents[0]].observation_space
        self._observation_space = Box(full_space.low[self._visible], full_space.high[self._visible], dtype=np.float32)

    @property
    def carts(self) -> list[CartPoleEnv]:
        """The cart-poles, by agent."""
        return list(self._envs.values())

    def observation_space(self, agent: str) -> Box:
        del agent
        return self._observation_space

    def observed(self, observation: Array) -> Array:
        return observation[self._visible]


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
