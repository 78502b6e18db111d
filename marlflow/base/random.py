"""Random streams that belong to an agent of an episode, not to the worker that plays it.

A number is a pure function of (seed, copy, episode, agent, decision, draw): a counter-based generator (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011), with SplitMix64 (Steele et al., OOPSLA 2014) as the mixing
function. So a run's choices do not depend on how copies are spread over workers, a tick costs a handful of vector
operations for all lanes, and there is no generator state to keep in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marlflow.base.batch import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = (np.uint64(bits) for bits in (30, 27, 31, 11))
_UNIT = 2.0**-53
_MASK = (1 << 64) - 1


def mix(x: Array) -> Array:
    """SplitMix64's finaliser: uint64 [...] to well-mixed uint64 [...]."""
    x = x + _GOLDEN
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    mixed: Array = x ^ (x >> _S31)
    return mixed


def key(*parts: int) -> int:
    """One 64-bit key from whole numbers, order included."""
    value = 0
    for part in parts:
        x = (value + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        value = x ^ (x >> 31)
    return value


def episode_seed(seed: int, copy: int, episode: int) -> int:
    """The seed that an environment is reset with, in [0, 2**31)."""
    return key(seed, copy, episode) >> 33


class RowRandom:
    """Random numbers for the rows of one tick, one independent stream per row.

    `keys` [N] are the streams (from `key(seed, copy, episode, agent)`), `counters` [N] the decisions they stand at.
    Each call takes the next draw of every stream. `copies` are the copies of the environment that the rows are from,
    int64 [N], for whoever explores more in some than in others; without them all rows are from copy 0.
    """

    __slots__ = ("_base", "_draw", "copies")

    def __init__(self, keys: Array, counters: Array, copies: Array | None = None) -> None:
        self._base = mix(keys + mix(counters.astype(np.uint64)))
        self._draw = 0
        self.copies: Array = np.zeros(len(keys), np.int64) if copies is None else copies

    def only(self, rows: Array) -> RowRandom:
        """The streams of `rows` (int64 [K]), from their first draw."""
        some = RowRandom.__new__(RowRandom)
        some._base, some._draw, some.copies = self._base[rows], 0, self.copies[rows]
        return some

    @classmethod
    def joined(cls, parts: Sequence[RowRandom]) -> RowRandom:
        """The streams of all `parts`, which stand at the same draw."""
        if len({part._draw for part in parts}) != 1:
            raise ValueError("only streams that stand at the same draw can be joined")
        joined = cls.__new__(cls)
        joined._base, joined._draw = np.concatenate([part._base for part in parts]), parts[0]._draw
        joined.copies = np.concatenate([part.copies for part in parts])
        return joined

    def __len__(self) -> int:
        return len(self._base)

    def uniform(self) -> Array:
        """Float64 [N], uniform in [0, 1)."""
        self._draw += 1
        draw = np.uint64((self._draw * 0xD1342543DE82EF95) & _MASK)
        uniform: Array = (mix(self._base + draw) >> _S11) * _UNIT
        return uniform

    def integers(self, high: int) -> Array:
        """Int64 [N], uniform over 0 to `high` - 1."""
        drawn: Array = (self.uniform() * high).astype(np.int64)
        return drawn

    def normal(self) -> Array:
        """Float64 [N], standard normal (Box and Muller, 1958)."""
        radius: Array = np.sqrt(-2.0 * np.log1p(-self.uniform()))
        normal: Array = radius * np.cos(2.0 * np.pi * self.uniform())
        return normal
