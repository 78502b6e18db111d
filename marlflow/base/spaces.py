"""Observation and action spaces of a policy's agents, as shapes and dtypes of the `obs` and `action` columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.encoder import Encoder
from marlflow.base.observations import ObservationLayout, layout, observation_problems


@dataclass(frozen=True, slots=True)
class Spaces:
    """Observation and action space as the policy sees them.

    `observation` excludes the action mask; `masked` says whether agents have one.
    """

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    masked: bool = False

    def problems(self) -> list[str]:
        """Return why no algorithm supports these spaces, or an empty list."""
        found = observation_problems(self.observation)
        if self.masked and not isinstance(self.action, spaces.Discrete):
            found.append(f"an action_mask comes with {self.action} actions; masks are for Discrete ones, so drop it")
        return found

    def layout(self) -> ObservationLayout:
        """Return the layout of the `obs` column; raises ConfigInvalid for unsupported observations."""
        return layout(self.observation)

    def encoder(self) -> Encoder:
        """Build the encoder of the `obs` column; raises ConfigInvalid for unsupported observations."""
        return Encoder(self.observation)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of a row of the `obs` column; raises ConfigInvalid as `layout`."""
        return self.layout().shape

    @property
    def obs_dtype(self) -> np.dtype[Any]:
        """Dtype of the `obs` column; raises ConfigInvalid as `layout`."""
        return self.layout().dtype

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of a row of the `action` column."""
        return self.action.shape or ()

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """Dtype of the `action` column: int64 for integers, float32 for a Box."""
        return np.dtype(np.float32 if isinstance(self.action, spaces.Box) else np.int64)

    @property
    def num_actions(self) -> int:
        """Number of actions of a Discrete space, the width of the `action_mask` column."""
        if not isinstance(self.action, spaces.Discrete):
            raise TypeError(f"num_actions is for Discrete actions, not {self.action}")
        return int(self.action.n)
