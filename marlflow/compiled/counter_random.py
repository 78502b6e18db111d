"""The random numbers of `base.random` in JAX: the same function of (seed, env, episode, agent, decision, draw).

64 bits are two arrays of 32, since JAX has no types of 64 bits in its usual mode. A uniform number has the upper 24 of
the 53 bits that numpy's has, so they differ by less than 2**-24.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from marlflow.base.arrays import Array


class Bits64(NamedTuple):
    """64 bits: `high` and `low`, uint32 of one shape."""

    high: Any
    low: Any

    def __add__(self, other: Bits64) -> Bits64:  # type: ignore[override]
        low = self.low + other.low
        return Bits64(self.high + other.high + (low < self.low).astype(jnp.uint32), low)

    def at(self, *where: Any) -> Bits64:
        """Return the elements at an index."""
        return Bits64(self.high[where], self.low[where])

    def reshape(self, *shape: int) -> Bits64:
        """Return the same bits in another shape."""
        return Bits64(self.high.reshape(shape), self.low.reshape(shape))

    def shifted_xor(self, bits: int) -> Bits64:
        """Return `x ^ (x >> bits)`, for less than 32 bits."""
        low = (self.low >> bits) | (self.high << (32 - bits))
        return Bits64(self.high ^ (self.high >> bits), self.low ^ low)

    def times(self, factor: int) -> Bits64:
        """Return the product with a constant, modulo 2**64."""
        high, low = factor >> 32, factor & 0xFFFFFFFF
        product = _upper_half(self.low, low) + self.low * jnp.uint32(high) + self.high * jnp.uint32(low)
        return Bits64(product, self.low * jnp.uint32(low))


def bits64(numbers: Array) -> Bits64:
    """Return uint64 numbers as two numpy arrays."""
    numbers = numbers.astype(np.uint64)
    return Bits64((numbers >> np.uint64(32)).astype(np.uint32), numbers.astype(np.uint32))


def uint64(bits: Bits64) -> Array:
    """Return `bits` as numpy's uint64."""
    whole: Array = (np.asarray(bits.high).astype(np.uint64) << np.uint64(32)) | np.asarray(bits.low)
    return whole


def small(number: Any) -> Bits64:
    """Return whole numbers below 2**32."""
    low = jnp.asarray(number).astype(jnp.uint32)
    return Bits64(jnp.zeros_like(low), low)


def mix(x: Bits64) -> Bits64:
    """Apply SplitMix64's finalizer, as `base.random.mix`."""
    x = x + _constant(0x9E3779B97F4A7C15)
    x = x.shifted_xor(30).times(0xBF58476D1CE4E5B9)
    x = x.shifted_xor(27).times(0x94D049BB133111EB)
    return x.shifted_xor(31)


class CounterRandom:
    """N independent streams, as `base.random.RowRandom`: each call draws once from all."""

    def __init__(self, keys: Bits64, counters: Any, env_indices: Any) -> None:
        self._base = mix(keys + mix(small(counters)))
        self.env_indices = env_indices
        self._draw = 0

    def anew(self) -> CounterRandom:
        """Return the same streams, from their first draw."""
        other = CounterRandom.__new__(CounterRandom)
        other._base, other.env_indices, other._draw = self._base, self.env_indices, 0
        return other

    def uniform(self) -> Any:
        """Draw float32 [N], uniform in [0, 1)."""
        self._draw += 1
        drawn = mix(self._base + _constant((self._draw * 0xD1342543DE82EF95) % 2**64))
        return (drawn.high >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)

    def normal(self) -> Any:
        """Draw float32 [N], standard normal (Box and Muller, 1958)."""
        radius = jnp.sqrt(-2.0 * jnp.log1p(-self.uniform()))
        return radius * jnp.cos(jnp.float32(2.0 * np.pi) * self.uniform())


def _constant(number: int) -> Bits64:
    return Bits64(jnp.uint32(number >> 32), jnp.uint32(number & 0xFFFFFFFF))


def _upper_half(x: Any, factor: int) -> Any:
    """Return the upper 32 bits of the product of uint32 `x` and a constant below 2**32."""
    mask = jnp.uint32(0xFFFF)
    upper, lower = jnp.uint32(factor >> 16), jnp.uint32(factor & 0xFFFF)
    high, low = x >> 16, x & mask
    middle = ((low * lower) >> 16) + ((low * upper) & mask) + ((high * lower) & mask)
    return high * upper + ((low * upper) >> 16) + ((high * lower) >> 16) + (middle >> 16)
