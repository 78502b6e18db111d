"""An environment's global state, `env.state()`, held to one shape and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.env.place import Place


class GlobalState:
    """The state of `env`. It is asked for nothing until somebody wants the state or its space."""

    def __init__(self, env: Any, place: Place) -> None:
        self._env, self._place = env, place
        self._space: spaces.Box | None = None
        self._tried = False

    @property
    def space(self) -> spaces.Box | None:
        """`env.state_space` if it is a Box, else a Box around a first `env.state()`; None if there is no state.

        The environment must have been reset. Raises EnvironmentFailed if state() fails in any other way than by
        NotImplementedError, PettingZoo's word for an environment without state.
        """
        if not self._tried:
            self._space = self._find()
            self._tried = True
        return self._space

    def read(self) -> Array:
        """The state now, [*space.shape] in the dtype of the space; the environment may reuse the array.

        Raises EnvironmentFailed if there is no state, or one of another shape, another kind of number, or with a NaN.
        """
        space = self.space
        if space is None:
            raise self._place.broken("the environment has no state(), which PettingZoo leaves to it")
        state = self._called()
        if state.shape != space.shape:
            raise self._place.broken(f"a state of shape {space.shape} was declared, one of shape {state.shape} came")
        if state.dtype != space.dtype:
            if not np.can_cast(state.dtype, space.dtype, "same_kind"):
                raise self._place.broken(f"a state of {space.dtype} was declared, one of {state.dtype} came")
            state = state.astype(space.dtype)
        if state.dtype.kind == "f" and np.isnan(state).any():
            raise self._place.broken("the state has a NaN")
        return state

    def _find(self) -> spaces.Box | None:
        try:
            state = self._called()
        except EnvironmentFailed as failure:
            if isinstance(failure.__cause__, NotImplementedError):
                return None
            raise
        declared = getattr(self._env, "state_space", None)
        return declared if isinstance(declared, spaces.Box) else _around(state)

    def _called(self) -> Array:
        try:
            state = np.asarray(self._env.state())
        except Exception as error:
            raise self._place.raised(error, "state()") from error
        if state.dtype.kind not in "biuf":
            raise self._place.broken(f"state() gave {state.dtype} instead of numbers")
        return state


def _around(state: Array) -> spaces.Box:
    """A Box that any state like this one lies in."""
    if state.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, state.shape, state.dtype.type)
    if state.dtype.kind == "b":
        return spaces.Box(0, 1, state.shape, np.uint8)
    bounds = np.iinfo(state.dtype)
    return spaces.Box(bounds.min, bounds.max, state.shape, state.dtype.type)
