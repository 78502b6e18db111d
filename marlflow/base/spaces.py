"""Observation and action spaces of a policy, as shapes and dtypes of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.encoder import Encoder
from marlflow.base.observations import ObservationLayout, layout, observation_problems

DISCRETE_KINDS = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Action spaces of whole numbers, which may have masks."""


@dataclass(frozen=True, slots=True)
class Spaces:
    """A policy's observation space, without action mask, and action space; `masked`: agents have masks.

    For central critics, and no part of equality: the global `state`'s space (None: the environment has none, or no
    policy needs it), and `num_agents`, the number of declared agents of the environment (0: none are declared). For
    joint learners: `seats`, the slots of the policy's agents among these (empty: not known beforehand).
    """

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    masked: bool = False
    state: spaces.Box | None = field(default=None, compare=False)
    num_agents: int = field(default=0, compare=False)
    seats: tuple[int, ...] = field(default=(), compare=False)

    def problems(self) -> list[str]:
        """Return why no algorithm supports these spaces, or an empty list."""
        problems = observation_problems(self.observation)
        if self.masked and not isinstance(self.action, DISCRETE_KINDS):
            kinds = "Discrete, MultiDiscrete and MultiBinary ones"
            problems.append(f"an action_mask comes with {self.action} actions; masks are for {kinds}, so drop it")
        return problems

    def layout(self) -> ObservationLayout:
        """Return the layout of the `obs` column; raises ConfigInvalid if unsupported."""
        return layout(self.observation)

    def encoder(self) -> Encoder:
        """Build the encoder of the `obs` column; raises ConfigInvalid if unsupported."""
        return Encoder(self.observation)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of an `obs` row."""
        return self.layout().shape

    @property
    def obs_dtype(self) -> np.dtype[Any]:
        """Dtype of `obs`."""
        return self.layout().dtype

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of an `action` row."""
        return self.action.shape or ()

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """Dtype of `action`: float32 for a Box, else int64."""
        return np.dtype(np.float32 if isinstance(self.action, spaces.Box) else np.int64)

    @property
    def num_actions(self) -> int:
        """Number of Discrete actions."""
        if not isinstance(self.action, spaces.Discrete):
            raise TypeError(f"num_actions is for Discrete actions, not {self.action}")
        return int(self.action.n)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of values of each component of an action; a Discrete has one component.

        `action_mask` has one element for each value: the masks of all components, concatenated.
        """
        return choices_of(self.action)

    @property
    def mask_width(self) -> int:
        """Width of `action_mask`."""
        return sum(self.choices)


def choices_of(action: spaces.Space[Any]) -> tuple[int, ...]:
    """Return the number of values of each component; raises TypeError for a Box."""
    if isinstance(action, spaces.Discrete):
        return (int(action.n),)
    if isinstance(action, spaces.MultiDiscrete):
        return tuple(np.asarray(action.nvec).ravel().tolist())
    if isinstance(action, spaces.MultiBinary):
        return (2,) * int(np.prod(action.shape))
    raise TypeError(f"components with values are for whole-number actions, not {action}")


def components(mask: Array, choices: Sequence[int]) -> list[Array]:
    """Return the part of `mask` [N, sum(choices)] for each component of actions, [N, choices] each."""
    return np.split(mask, np.cumsum(choices)[:-1], axis=1)


def describe_space(space: spaces.Space[Any]) -> str:
    """Return a short text for messages: Boxes without bounds."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {describe_space(inner)}' for key, inner in space.items())})"
    return f"Box{space.shape}" if isinstance(space, spaces.Box) else str(space)
