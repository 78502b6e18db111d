"""What the agents of one policy see and do, as arrays: the shapes and dtypes of the `obs` and `action` columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.encoder import Encoder
from marlflow.base.observations import Layout, layout, observation_problems


@dataclass(frozen=True, slots=True)
class Spaces:
    """What the agents of one policy observe and do, as the policy sees it.

    `observation` is without the action mask; `masked` says whether the agents come with one.
    """

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    masked: bool = False

    def problems(self) -> list[str]:
        """Why no policy could play in these spaces, whatever its algorithm; empty if one can."""
        found = observation_problems(self.observation)
        if self.masked and not isinstance(self.action, spaces.Discrete):
            found.append(f"an action_mask comes with {self.action} actions; masks are for Discrete ones, so drop it")
        return found

    def layout(self) -> Layout:
        """What stands where in a row of the `obs` column; raises ConfigInvalid for what nobody can see."""
        return layout(self.observation)

    def encoder(self) -> Encoder:
        """What makes rows of the `obs` column of observations; raises ConfigInvalid for what nobody can see."""
        return Encoder(self.observation)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """The shape of one row of the `obs` column; raises ConfigInvalid for what nobody can see."""
        return self.layout().shape

    @property
    def obs_dtype(self) -> np.dtype[Any]:
        """The dtype of the `obs` column; raises ConfigInvalid for what nobody can see."""
        return self.layout().dtype

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
