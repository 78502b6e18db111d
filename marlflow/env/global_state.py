"""The global state of an environment, `env.state()`, checked for a constant shape and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.encoder import Encoder, ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.env.episode_location import EpisodeLocation


class GlobalState:
    """Reads the state of `env`, lazily: not every environment's `state()` works."""

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        self._env, self._location = env, location
        self._space: spaces.Box | None = None
        self._encoder: Encoder | None = None
        self._has_looked = False

    @property
    def space(self) -> spaces.Box | None:
        """An unbounded Box of the state's shape and dtype (floats as float32), or None if there is no state.

        Reset first. Raises EnvironmentFailed if state() raises anything but NotImplementedError.
        """
        if not self._has_looked:
            self._space = self._find_space()
            self._encoder = None if self._space is None else Encoder(self._space)
            self._has_looked = True
        return self._space

    def read(self) -> Array:
        """Return a copy of the state, [*space.shape].

        Raises EnvironmentFailed if there is no state, its shape changed, it has a NaN, or the dtype cannot hold it.
        """
        if self.space is None or self._encoder is None:
            raise self._location.broken("the environment has no state(), which PettingZoo leaves to it")
        state = self._call_state()
        try:
            row: Array = self._encoder.stack([state])[0]
        except ObservationOutside as outside:
            raise self._location.broken(f"the {outside.reason.replace('observation', 'state', 1)}") from outside
        return row

    def _find_space(self) -> spaces.Box | None:
        # Some environments store an attribute of this name that is no method.
        if not callable(getattr(self._env, "state", None)):
            return None
        try:
            state = self._call_state()
        except EnvironmentFailed as failure:
            # PettingZoo's environments without state raise it.
            if isinstance(failure.__cause__, NotImplementedError):
                return None
            raise
        declared = state_space_of(getattr(self._env, "state_space", None))
        return _unbounded_space(state.shape, state.dtype) if declared is None else declared

    def _call_state(self) -> Array:
        try:
            state = np.asarray(self._env.state())
        except Exception as error:
            raise self._location.raised(error, "state()") from error
        if state.dtype.kind not in "biuf":
            raise self._location.broken(f"state() gave {state.dtype} instead of numbers")
        return state


def state_space_of(declared: Any) -> spaces.Box | None:
    """Return the space of a state whose `state_space` is `declared`: without bounds, floats as float32; else None."""
    return _unbounded_space(declared.shape, np.dtype(declared.dtype)) if isinstance(declared, spaces.Box) else None


def _unbounded_space(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    # States of bools are stored as 0 and 1.
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, np.uint8)
    bounds = np.iinfo(dtype)
    return spaces.Box(bounds.min, bounds.max, shape, dtype.type)
