"""The global state of an environment, `env.state()`, checked for one shape and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.batch import Array
from marlflow.base.encoder import Encoder, ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.env.episode_location import EpisodeLocation


class GlobalState:
    """Reads the state of `env`, lazily: not every environment's `state()` works."""

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        self._env, self._location = env, location
        self._space: spaces.Box | None = None
        self._encoder: Encoder | None = None
        self._tried = False

    @property
    def space(self) -> spaces.Box | None:
        """An unbounded Box of the state's shape and dtype (float32 for all floats), or None if there is no state.

        Reset first. Raises EnvironmentFailed if state() raises anything but NotImplementedError, PettingZoo's sign of
        no state.
        """
        if not self._tried:
            self._space = self._find()
            self._encoder = None if self._space is None else Encoder(self._space)
            self._tried = True
        return self._space

    def read(self) -> Array:
        """Return a copy of the state, [*space.shape] in the dtype of the space.

        Raises EnvironmentFailed if there is no state, its shape changed, it has a NaN, or the dtype cannot hold it.
        """
        if self.space is None or self._encoder is None:
            raise self._location.broken("the environment has no state(), which PettingZoo leaves to it")
        state = self._called()
        try:
            row: Array = self._encoder.stack([state])[0]
        except ObservationOutside as outside:
            raise self._location.broken(f"the {outside.reason.replace('observation', 'state', 1)}") from outside
        return row

    def _find(self) -> spaces.Box | None:
        # Some environments store an attribute of this name that is no method.
        if not callable(getattr(self._env, "state", None)):
            return None
        try:
            state = self._called()
        except EnvironmentFailed as failure:
            if isinstance(failure.__cause__, NotImplementedError):
                return None
            raise
        declared = getattr(self._env, "state_space", None)
        if isinstance(declared, spaces.Box):
            return _around(declared.shape, np.dtype(declared.dtype))
        return _around(state.shape, state.dtype)

    def _called(self) -> Array:
        try:
            state = np.asarray(self._env.state())
        except Exception as error:
            raise self._location.raised(error, "state()") from error
        if state.dtype.kind not in "biuf":
            raise self._location.broken(f"state() gave {state.dtype} instead of numbers")
        return state


def _around(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    """Return the Box that contains every state of this shape and dtype."""
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    # States of bools are stored as 0 and 1.
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, np.uint8)
    bounds = np.iinfo(dtype)
    return spaces.Box(bounds.min, bounds.max, shape, dtype.type)
