"""Counter-based random numbers: results do not depend on how environments are distributed over workers.

A number is a pure function of (seed, env, episode, agent, decision, draw) (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011), mixed by SplitMix64 (Steele et al., OOPSLA 2014). Checkpoints need no generator state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marlflow.base.arrays import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = (np.uint64(bits) for bits in (30, 27, 31, 11))
_UNIT = 2.0**-53
_MASK = (1 << 64) - 1


def mix(x: Array) -> Array:
    """Apply SplitMix64's finalizer to uint64 [...]."""
    x = x + _GOLDEN
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    mixed: Array = x ^ (x >> _S31)
    return mixed


def key(*parts: int) -> int:
    """Hash integers, in order, to 64 bits."""
    value = 0
    # The arithmetic of `mix`, on Python's integers.
    for part in parts:
        x = (value + (int(part) & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        value = x ^ (x >> 31)
    return value


def keys(*parts: Array | int) -> Array:
    """Return `key` of each element: uint64 of the broadcast shape of `parts`, of which one at least is an array."""
    value: Array = np.zeros((1,), np.uint64)
    for part in parts:
        value = mix(value + (np.uint64(part & _MASK) if isinstance(part, int) else part.astype(np.uint64)))
    return value


def episode_seed(seed: int, env_index: int, episode: int) -> int:
    """Return the seed of an environment's reset, in [0, 2**31)."""
    return key(seed, env_index, episode) >> 33


def named_seed(seed: int, purpose: str, name: str) -> int:
    """Return the seed of the random parts of `name` for `purpose`, in [0, 2**31)."""
    return key(seed, *purpose.encode(), *name.encode()) >> 33


class RowRandom:
    """N independent random streams, one per row; each call draws once from all.

    `keys` [N] are `key(seed, env, episode, agent)`, `counters` [N] decision counts, `env_indices` int64 [N] the rows'
    environments (default 0), for exploration that differs by environment.
    """

    __slots__ = ("_base", "_draw", "_subsets", "env_indices")

    def __init__(self, keys: Array, counters: Array, env_indices: Array | None = None) -> None:
        self._base = mix(keys + mix(counters.astype(np.uint64)))
        self._draw = 0
        self._subsets: tuple[RowRandom, ...] = ()
        self.env_indices: Array = np.zeros(len(keys), np.int64) if env_indices is None else env_indices

    def only(self, rows: Array) -> RowRandom:
        """Return the streams of `rows` (int64 [K]), from their first draw."""
        # Built without __init__, which would mix the keys again.
        subset = RowRandom.__new__(RowRandom)
        subset._base, subset._draw, subset._subsets = self._base[rows], 0, ()
        subset.env_indices = self.env_indices[rows]
        self._subsets = (*self._subsets, subset)
        return subset

    @classmethod
    def joined(cls, parts: Sequence[RowRandom]) -> RowRandom:
        """Concatenate streams that have drawn equally often."""
        if len({part._draw for part in parts}) != 1:
            raise ValueError("only streams with the same number of draws can be joined")
        joined = cls.__new__(cls)
        joined._base, joined._draw = np.concatenate([part._base for part in parts]), parts[0]._draw
        joined._subsets = ()
        joined.env_indices = np.concatenate([part.env_indices for part in parts])
        return joined

    def __len__(self) -> int:
        return len(self._base)

    @property
    def has_drawn(self) -> bool:
        """Whether anything was drawn, from it or from streams of `only`."""
        return self._draw > 0 or any(subset.has_drawn for subset in self._subsets)

    def uniform(self) -> Array:
        """Draw float64 [N], uniform in [0, 1)."""
        self._draw += 1
        draw = np.uint64((self._draw * 0xD1342543DE82EF95) & _MASK)
        # The upper 53 bits are all that a float64 in [0, 1) can hold.
        uniform: Array = (mix(self._base + draw) >> _S11) * _UNIT
        return uniform

    def integers(self, high: int) -> Array:
        """Draw int64 [N], uniform over 0 to `high` - 1."""
        drawn: Array = (self.uniform() * high).astype(np.int64)
        return drawn

    def normal(self) -> Array:
        """Draw float64 [N], standard normal (Box and Muller, 1958)."""
        # 1 - u is in (0, 1], so the logarithm is finite.
        radius: Array = np.sqrt(-2.0 * np.log1p(-self.uniform()))
        normal: Array = radius * np.cos(2.0 * np.pi * self.uniform())
        return normal
