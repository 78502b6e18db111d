"""B teams of pendulums at once: the states of `marlflow.env.games.pendulum_team` for the same seeds and actions.

Rewards are the same up to rounding: gymnasium squares the torque with `powf`, which numpy has for single numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium.envs.classic_control.pendulum import DEFAULT_X, DEFAULT_Y, PendulumEnv

from marlflow.base.arrays import Array
from marlflow.env.batched.generators import generators
from marlflow.env.batched.protocol import BatchedStep
from marlflow.env.games.pendulum_team import PendulumTeam

_PENDULUM = "pendulum"


class BatchedPendulumTeam:
    """One group, `pendulum`, of `num_agents` agents; the arguments are as in `pendulum_team.parallel_env`."""

    turn_based = False

    def __init__(self, num_envs: int, num_agents: int = 4, max_cycles: int = 200) -> None:
        team = PendulumTeam(num_agents, max_cycles)
        self.num_envs, self.max_cycles = num_envs, max_cycles
        self.metadata = {"name": PendulumTeam.metadata["name"]}
        self.possible_agents = team.possible_agents
        self.groups = {_PENDULUM: team.possible_agents}
        self.observation_space, self.action_space = team.observation_space, team.action_space
        self._physics = PendulumEnv()
        # Angle from upright, and angular velocity.
        self._state = np.zeros((2, num_envs, num_agents))
        self._cycles = np.zeros(num_envs, np.int64)
        self._observations = np.zeros((num_envs, num_agents, 3), np.float32)

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        agents = len(self.possible_agents)
        high = np.array([DEFAULT_X, DEFAULT_Y])
        drawn = generators(seeds).uniforms(2 * agents).reshape(-1, agents, 2)
        self._state[:, envs] = (-high + (high - -high) * drawn).transpose(2, 0, 1)
        self._cycles[envs] = 0
        return BatchedStep({_PENDULUM: self._observe(envs)})

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        """Advance all pendulums by one step of gymnasium's Pendulum, in its order of operations."""
        physics = self._physics
        angle, speed = self._state
        torque = np.clip(actions[_PENDULUM][..., 0], -physics.max_torque, physics.max_torque)
        turned = ((angle + np.pi) % (2 * np.pi)) - np.pi
        # As gymnasium's `**` of single numbers; np.square rounds otherwise in a few of a thousand.
        costs = np.float_power(turned, 2) + 0.1 * np.float_power(speed, 2) + 0.001 * np.square(torque)
        acceleration = 3 * physics.g / (2 * physics.l) * np.sin(angle) + 3.0 / (physics.m * physics.l**2) * torque
        speed += acceleration * physics.dt
        np.clip(speed, -physics.max_speed, physics.max_speed, out=speed)
        angle += speed * physics.dt
        self._cycles += 1
        over = np.repeat((self._cycles >= self.max_cycles)[:, None], len(self.possible_agents), axis=1)
        return BatchedStep(
            {_PENDULUM: self._observe(slice(None))},
            {_PENDULUM: -costs},
            {_PENDULUM: np.zeros_like(over)},
            {_PENDULUM: over},
        )

    def _observe(self, envs: Array | slice) -> Array:
        angle, speed = self._state[:, envs]
        for column, values in enumerate((np.cos(angle), np.sin(angle), speed)):
            self._observations[envs, :, column] = values
        return self._observations

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {"pendulums": self._state[:, envs].transpose(1, 0, 2).copy(), "cycles": self._cycles[envs]}

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        self._state[:, envs] = state["pendulums"].transpose(1, 0, 2)
        self._cycles[envs] = state["cycles"]
        return BatchedStep({_PENDULUM: self._observe(envs)})

    def close(self) -> None:
        """Do nothing."""
