"""What an agent sees and does, as arrays: how an observation becomes one row of one column.

A Box observation keeps its shape and dtype (uint8 pixels stay uint8 until they reach the network). Everything else
(Discrete, MultiDiscrete, MultiBinary, Dict, Tuple, nested) becomes a float32 vector by gymnasium's own flattening, in
which a Discrete value is one-hot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.batch import Array


@dataclass(frozen=True, slots=True)
class Spaces:
    """What the agents of one policy observe and do, as the policy sees it.

    `observation` is without the action mask; `masked` says whether the agents come with one.
    """

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    masked: bool = False

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """The shape of one row of the `obs` column."""
        if isinstance(self.observation, spaces.Box):
            return self.observation.shape
        return (spaces.flatdim(self.observation),)

    @property
    def obs_dtype(self) -> np.dtype[Any]:
        """The dtype of the `obs` column: a Box's own (float64 becomes float32), else float32."""
        own = self.observation.dtype if isinstance(self.observation, spaces.Box) else None
        return np.dtype(np.float32) if own is None or own == np.float64 else np.dtype(own)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one row of the `action` column."""
        return self.action.shape or ()

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """The dtype of the `action` column: int64 for whole numbers, float32 for a Box."""
        return np.dtype(np.float32 if isinstance(self.action, spaces.Box) else np.int64)

    @property
    def num_actions(self) -> int:
        """The number of actions of a Discrete space; the width of the `action_mask` column."""
        if not isinstance(self.action, spaces.Discrete):
            raise TypeError(f"num_actions is for Discrete actions, not {self.action}")
        return int(self.action.n)

    def stack(self, observations: Sequence[Any]) -> Array:
        """Observations of N agents as one array, [N, *obs_shape]."""
        if not isinstance(self.observation, spaces.Box):
            observations = [spaces.flatten(self.observation, observation) for observation in observations]
        return np.asarray(np.stack(observations), dtype=self.obs_dtype)
