"""Actions that are a Dict or a Tuple, as one MultiDiscrete or Box."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import DISCRETE_KINDS, choices_of
from marlflow.env.declared import describe_space

_Space = spaces.Space[Any]


class FlatActions:
    """The entries of an agent's Dict or Tuple actions, in the order of the space, as one action of `space`.

    It is a MultiDiscrete if all entries are discrete, a Box if all are Boxes of floats. Other spaces stay as they are.
    Raises ConfigInvalid if they are mixed, or of another kind.
    """

    def __init__(self, agent: str, nested: _Space) -> None:
        self._nested, self.space = nested, nested
        if not isinstance(nested, spaces.Dict | spaces.Tuple):
            return
        flat = list(entries(nested))
        if flat and all(isinstance(entry, DISCRETE_KINDS) for entry in flat):
            self.space = spaces.MultiDiscrete([count for entry in flat for count in choices_of(entry)])
        elif flat and all(isinstance(entry, spaces.Box) and entry.dtype.kind == "f" for entry in flat):
            low, high = (
                np.concatenate([np.ravel(getattr(entry, bound)) for entry in flat]).astype(np.float32)
                for bound in ("low", "high")
            )
            self.space = spaces.Box(low, high)
        else:
            problem = (
                f"agent {agent!r} has {describe_space(nested)} actions, and one action has discrete entries only, or "
                "Boxes of floats only; make them alike in the environment, such as a Box of five steps"
            )
            raise ConfigInvalid([problem])

    def nested(self, action: Any) -> Any:
        """Return an action of the nested space."""
        return action if self.space is self._nested else _nested(self._nested, iter(np.asarray(action).tolist()))


def entries(space: _Space) -> Iterator[_Space]:
    """Return the entries of a Dict or Tuple, also nested, in order; of another space, itself."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for entry in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from entries(entry)
    else:
        yield space


def _nested(space: _Space, numbers: Iterator[float]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(entry, numbers) for key, entry in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(entry, numbers) for entry in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.start + space.dtype.type(next(numbers))
    shape: Any = space.shape
    taken: Array = np.array([next(numbers) for _ in range(int(np.prod(shape)))]).reshape(shape)
    if isinstance(space, spaces.Box):
        # A bound that float32 rounds may be outside.
        return np.asarray(np.clip(taken.astype(space.dtype), space.low, space.high))
    return (taken + getattr(space, "start", 0)).astype(space.dtype)
