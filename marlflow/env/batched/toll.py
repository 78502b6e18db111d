"""B tolls at once: the numbers of `marlflow.env.games.toll`, costs included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.info_columns import COST
from marlflow.env.batched.protocol import BatchedStep
from marlflow.env.games.toll import FAST, Toll

_CAR = "car"


class BatchedToll:
    """One group, `car`, of `num_agents` agents; the argument is as in `toll.parallel_env`.

    The seed of an episode does not matter.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": Toll.metadata["name"]}
    turn_based = False
    info_keys = (COST,)

    def __init__(self, num_envs: int, num_agents: int = 2) -> None:
        original = Toll(num_agents)
        self.num_envs = num_envs
        self.possible_agents = original.possible_agents
        self.groups = {_CAR: original.possible_agents}
        self.observation_space, self.action_space = original.observation_space, original.action_space
        self.state_space = original.state_space
        self._observations = np.ones((num_envs, num_agents, 1), np.float32)

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        del envs, seeds
        return BatchedStep({_CAR: self._observations})

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        fast = (actions[_CAR] == FAST).astype(np.float64)
        over = np.ones(fast.shape, bool)
        return BatchedStep(
            {_CAR: self._observations}, {_CAR: 1.0 + fast}, {_CAR: over}, {_CAR: ~over}, infos={COST: {_CAR: fast}}
        )

    def state(self) -> Array:
        """Return a 1 for each environment, [B, 1]."""
        return np.ones((self.num_envs, 1), np.float32)

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {"running": np.ones(len(envs), bool)}

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        del envs, state
        return BatchedStep({_CAR: self._observations})

    def close(self) -> None:
        """Do nothing."""
