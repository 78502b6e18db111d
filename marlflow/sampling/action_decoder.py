"""Converts the actions of a policy to those of its environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError

# Larger Discrete spaces create their numbers when chosen.
_MOST_NUMBERS = 4096


class ActionDecoder:
    """Converts rows of the actions of `policy` to what the action space would sample."""

    def __init__(self, policy: str, space: gym_spaces.Space[Any]) -> None:
        self._policy, self._space = policy, space
        self._discrete: dict[int, Any] = {}
        if isinstance(space, gym_spaces.Discrete) and space.n <= _MOST_NUMBERS:
            self._discrete = dict(enumerate(np.arange(space.start, space.start + space.n, dtype=space.dtype)))
        self._ends: tuple[Array, Array, gym_spaces.Box] | None = None
        if isinstance(space, gym_spaces.Box) and space.dtype == np.float64:
            # Policies act in float32; a float64 bound rounded to float32 may lie outside of the space.
            self._ends = space.low.astype(np.float32), space.high.astype(np.float32), space

    def choices(self, action: Array) -> list[Any]:
        """Convert `action` rows to what `action_space.sample()` would return."""
        if self._discrete:
            try:
                return [self._discrete[number] for number in action.tolist()]
            except KeyError as wrong:
                raise MarlflowError(self._outside(wrong.args[0])) from wrong
        return list(self.values(action))

    def values(self, action: Array) -> Array:
        """Convert `action` rows to those of the action space, [N, ...]; raises MarlflowError."""
        space = self._space
        if isinstance(space, gym_spaces.Discrete) and not _are_numbers_below(action, int(space.n)):
            wrong = action[(action < 0) | (action >= space.n)][0]
            raise MarlflowError(self._outside(wrong))
        if isinstance(space, gym_spaces.Discrete | gym_spaces.MultiDiscrete):
            action = action + space.start
        if self._ends is not None:
            low, high, box = self._ends
            return np.where(action == low, box.low, np.where(action == high, box.high, action))
        return action.astype(space.dtype, copy=False)

    def _outside(self, action: object) -> str:
        return f"policy {self._policy!r} chose action {action}, counted from 0, of {self._space}"


def _are_numbers_below(action: Array, count: int) -> bool:
    # One comparison: a negative number is a large one without sign.
    return not len(action) or int(action.astype(np.int64, copy=False).view(np.uint64).max()) < count
