"""B teams of cart-poles at once: the numbers of `marlflow.env.games.cartpole_team` for the same seeds and actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.env.batched.generators import generators
from marlflow.env.batched.protocol import BatchedStep
from marlflow.env.games.cartpole_team import CartPoleTeam

_CART = "cart"


class BatchedCartPoleTeam:
    """One group, `cart`, of `num_agents` agents; the arguments are as in `cartpole_team.parallel_env`."""

    metadata: ClassVar[dict[str, Any]] = {"name": CartPoleTeam.metadata["name"]}
    turn_based = False

    def __init__(self, num_envs: int, num_agents: int = 4, max_cycles: int = 200, velocities: bool = True) -> None:
        # Spaces and constants come from the PettingZoo version.
        team = CartPoleTeam(num_agents, max_cycles, velocities=velocities)
        self.num_envs, self.max_cycles = num_envs, max_cycles
        self.possible_agents = team.possible_agents
        self.groups = {_CART: team.possible_agents}
        self.observation_space, self.action_space = team.observation_space, team.action_space
        self._physics = team.carts[0]
        self._visible = range(4) if velocities else range(0, 4, 2)
        # Position, velocity, angle, angular velocity of each cart.
        self._state = np.zeros((4, num_envs, num_agents))
        self._stands = np.zeros((num_envs, num_agents), bool)
        self._cycles = np.zeros(num_envs, np.int64)
        self._observations = np.zeros((num_envs, num_agents, len(self._visible)), np.float32)

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        agents = len(self.possible_agents)
        drawn = generators(seeds).uniforms(4 * agents, -0.05, 0.05)
        self._state[:, envs] = drawn.reshape(-1, agents, 4).transpose(2, 0, 1)
        self._stands[envs], self._cycles[envs] = True, 0
        return BatchedStep({_CART: self._observe(envs)})

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        x, _, theta, _ = self._move(actions[_CART])
        cart, stood = self._physics, self._stands
        fell = np.abs(x) > cart.x_threshold
        fell |= np.abs(theta) > cart.theta_threshold_radians
        fell &= stood
        self._cycles += 1
        is_last = self._cycles >= self.max_cycles
        truncated = is_last[:, None] & stood & ~fell
        observations = self._observe(slice(None))
        rewards = stood.astype(np.float64)
        self._stands = stands = stood & ~fell & ~truncated
        # Otherwise the pole of a cart that is not controlled would swing faster and faster.
        if not stands.all():
            self._state[:, ~stands] = 0.0
        return BatchedStep({_CART: observations}, {_CART: rewards}, {_CART: fell}, {_CART: truncated})

    def _move(self, action: Array) -> Array:
        """Advance all carts by one step of gymnasium's CartPole, in its order of operations."""
        cart = self._physics
        x, x_dot, theta, theta_dot = self._state
        force = np.where(action == 1, cart.force_mag, -cart.force_mag)
        cos, sin = np.cos(theta), np.sin(theta)
        temp = (force + cart.polemass_length * np.square(theta_dot) * sin) / cart.total_mass
        theta_acc = (cart.gravity * sin - cos * temp) / (
            cart.length * (4.0 / 3.0 - cart.masspole * np.square(cos) / cart.total_mass)
        )
        x_acc = temp - cart.polemass_length * theta_acc * cos / cart.total_mass
        # The position moves by the velocity before the step.
        x += cart.tau * x_dot
        x_dot += cart.tau * x_acc
        theta += cart.tau * theta_dot
        theta_dot += cart.tau * theta_acc
        return self._state

    def _observe(self, envs: Array | slice) -> Array:
        for column, index in enumerate(self._visible):
            self._observations[envs, :, column] = self._state[index, envs]
        return self._observations

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {
            "carts": self._state[:, envs].transpose(1, 0, 2).copy(),
            "stands": self._stands[envs],
            "cycles": self._cycles[envs],
        }

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        self._state[:, envs] = state["carts"].transpose(1, 0, 2)
        self._stands[envs], self._cycles[envs] = state["stands"], state["cycles"]
        return BatchedStep({_CART: self._observe(envs)})

    def close(self) -> None:
        """Do nothing."""
