"""Points of spaces that are made from one whole number, and what lies outside a space."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from marlflow.base.random import key, mix

SPOILING = ("seen is nan", "seen is outside", "seen is misshapen")


def quantiles(number, shape):
    """As many numbers in [0, 1) as `shape` has, made from one whole number."""
    counter = np.arange(int(np.prod(shape)), dtype=np.uint64)
    return ((mix(np.uint64(number) + counter) >> np.uint64(11)) * 2.0**-53).reshape(shape)


def fingerprint(space, number):
    """A point of `space` made from `number`."""
    if isinstance(space, spaces.Dict):
        return {name: fingerprint(inner, key(number, i)) for i, (name, inner) in enumerate(space.spaces.items())}
    if isinstance(space, spaces.Tuple):
        return tuple(fingerprint(inner, key(number, i)) for i, inner in enumerate(space.spaces))
    at = quantiles(number, space.shape)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(space.start + int(at * space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return (space.start + at * space.nvec).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return (at < 0.5).astype(space.dtype)
    low, high = (np.clip(bound.astype(np.float64), -(2.0**41), 2.0**41) for bound in (space.low, space.high))
    return np.asarray(low + at * (high - low), space.dtype)


def overwrite(old, new):
    """Puts `new` into the arrays of `old`."""
    if isinstance(old, np.ndarray):
        old[...] = new
    elif isinstance(old, dict | tuple):
        for name in old if isinstance(old, dict) else range(len(old)):
            overwrite(old[name], new[name])


def spoiled(space, observation, how):
    """`observation` with something wrong in it, or None where this `space` cannot have it wrong."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        names = space.spaces if isinstance(space, spaces.Dict) else range(len(space.spaces))
        for name in names:
            inner = None if name == "action_mask" else spoiled(space[name], observation[name], how)
            if inner is not None:
                table = dict(observation) if isinstance(space, spaces.Dict) else dict(enumerate(observation))
                table[name] = inner
                return table if isinstance(space, spaces.Dict) else tuple(table.values())
        return None
    if how == "seen is misshapen":
        return None if isinstance(space, spaces.Discrete) else np.zeros((*space.shape, 2), space.dtype)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(space.start + space.n) if how == "seen is outside" else None
    wrong = observation.copy()
    if how == "seen is nan":
        wrong[...] = np.nan if space.dtype.kind == "f" else wrong
        return wrong if space.dtype.kind == "f" else None
    if isinstance(space, spaces.Box) and (space.dtype == np.uint8 or np.isinf(space.high).any()):
        return None
    wrong[...] = 2 * space.high + 1 if isinstance(space, spaces.Box) else 100
    return wrong
