"""An environment's global state, `env.state()`, held to one shape and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.batch import Array
from marlflow.base.encoder import Encoder, ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.env.place import Place


class GlobalState:
    """The state of `env`. It is asked for nothing until somebody wants the state or its space."""

    def __init__(self, env: Any, place: Place) -> None:
        self._env, self._place = env, place
        self._space: spaces.Box | None = None
        self._encoder: Encoder | None = None
        self._tried = False

    @property
    def space(self) -> spaces.Box | None:
        """An unbounded Box of the shape and dtype of the state, float32 for all floats; None if there is no state.

        The environment must have been reset. Raises EnvironmentFailed if state() fails in any other way than by
        NotImplementedError, PettingZoo's word for an environment without state.
        """
        if not self._tried:
            self._space = self._find()
            self._encoder = None if self._space is None else Encoder(self._space)
            self._tried = True
        return self._space

    def read(self) -> Array:
        """A copy of the state now, [*space.shape] in the dtype of the space.

        Raises EnvironmentFailed if there is no state, or one of another shape, a NaN, or numbers that the dtype cannot
        hold; bounds of `env.state_space` are not asked for.
        """
        if self.space is None or self._encoder is None:
            raise self._place.broken("the environment has no state(), which PettingZoo leaves to it")
        state = self._called()
        try:
            row: Array = self._encoder.stack([state])[0]
        except ObservationOutside as outside:
            raise self._place.broken(f"the {outside.reason.replace('observation', 'state', 1)}") from outside
        return row

    def _find(self) -> spaces.Box | None:
        if not callable(getattr(self._env, "state", None)):  # some keep a state of their own under this name
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
            raise self._place.raised(error, "state()") from error
        if state.dtype.kind not in "biuf":
            raise self._place.broken(f"state() gave {state.dtype} instead of numbers")
        return state


def _around(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    """A Box that any state of this kind lies in."""
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, np.uint8)
    bounds = np.iinfo(dtype)
    return spaces.Box(bounds.min, bounds.max, shape, dtype.type)
