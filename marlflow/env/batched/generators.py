"""N numpy generators at once: the numbers of `np.random.default_rng(seed)` for N seeds.

Environments that are compared with their PettingZoo versions draw the same numbers at a reset. To make one
Generator costs 15 µs, as much as a whole step of a simple environment.

SeedSequence: O'Neill (2015), "Developing a seed_seq alternative". PCG64 (XSL-RR 128/64): O'Neill (2014), "PCG: A family
of simple fast space-efficient statistically good algorithms for random number generation".
"""

from __future__ import annotations

from functools import cache

import numpy as np

from marlflow.base.arrays import Array

_POOL = 4
_INIT_A, _MULT_A, _INIT_B, _MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_WORD = 0xFFFFFFFF
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_S1, _S11, _S32, _S58, _S63, _S64 = (np.uint64(bits) for bits in (1, 11, 32, 58, 63, 64))
_LOW_WORD = np.uint64(_WORD)


class Generators:
    """PCG64 generators seeded by `seeds` (int [N], each in [0, 2**32)); each call draws once from all."""

    def __init__(self, seeds: Array) -> None:
        words = _seed_words(np.asarray(seeds).astype(np.uint32))
        start_high, start_low, sequence_high, sequence_low = (
            words[2 * i].astype(np.uint64) | (words[2 * i + 1].astype(np.uint64) << _S32) for i in range(4)
        )
        self._increment_high = (sequence_high << _S1) | (sequence_low >> _S63)
        self._increment_low = (sequence_low << _S1) | _S1
        # The first step from state 0 gives the increment.
        self._high, self._low = _add(self._increment_high, self._increment_low, start_high, start_low)
        self._advance()
        # A second number of 32 bits from the last 64, as numpy buffers it.
        self._spare = np.zeros(len(words[0]), np.uint64)
        self._has_spare = np.zeros(len(words[0]), bool)

    def _advance(self) -> None:
        high, low = _multiply(self._high, self._low, *_words(_MULTIPLIER))
        self._high, self._low = _add(high, low, self._increment_high, self._increment_low)

    def _next(self) -> Array:
        self._advance()
        return _output(self._high, self._low)

    def uniforms(self, count: int, low: float = 0.0, high: float = 1.0) -> Array:
        """Draw `Generator.uniform(low, high, count)`: float64 [N, count]."""
        multipliers, increments = _jumps(count)
        high_part, low_part = _add(
            *_multiply(self._high[:, None], self._low[:, None], *multipliers),
            *_multiply(self._increment_high[:, None], self._increment_low[:, None], *increments),
        )
        self._high, self._low = high_part[:, -1].copy(), low_part[:, -1].copy()
        drawn: Array = low + (high - low) * ((_output(high_part, low_part) >> _S11) * 2.0**-53)
        return drawn

    def integers(self, high: int) -> Array:
        """Draw `Generator.integers(high)`, as `choice` from a list of `high` things does: int64 [N]."""
        if high == 1:
            # numpy draws nothing then.
            return np.zeros(len(self._high), np.int64)
        # Lemire (2019), "Fast random integer generation in an interval".
        product = self._next_word(np.ones(len(self._high), bool)) * np.uint64(high)
        threshold = np.uint64((_WORD - (high - 1)) % high)
        while (again := (product & _LOW_WORD) < threshold).any():
            product = np.where(again, self._next_word(again) * np.uint64(high), product)
        return (product >> _S32).astype(np.int64)

    def _next_word(self, which: Array) -> Array:
        """Draw 32 bits from the generators `which`, bool [N]; the others are unchanged."""
        fresh = which & ~self._has_spare
        before = self._high, self._low
        drawn = self._next()
        self._high, self._low = np.where(fresh, self._high, before[0]), np.where(fresh, self._low, before[1])
        word = np.where(fresh, drawn & _LOW_WORD, self._spare)
        self._spare = np.where(fresh, drawn >> _S32, self._spare)
        self._has_spare = np.where(which, fresh, self._has_spare)
        return word


def _seed_words(seeds: Array) -> list[Array]:
    """Return `SeedSequence(seed).generate_state(8)`, uint32 [N] each."""
    constant = _INIT_A

    def hashed(value: Array) -> Array:
        nonlocal constant
        value = value ^ np.uint32(constant)
        constant = constant * _MULT_A & _WORD
        value = value * np.uint32(constant)
        mixed: Array = value ^ (value >> np.uint32(16))
        return mixed

    pool = [hashed(seeds if i == 0 else np.zeros_like(seeds)) for i in range(_POOL)]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                mixed: Array = _MIX_L * pool[target] - _MIX_R * hashed(pool[source])
                pool[target] = mixed ^ (mixed >> np.uint32(16))
    words, constant = [], _INIT_B
    for i in range(2 * _POOL):
        word = pool[i % _POOL] ^ np.uint32(constant)
        constant = constant * _MULT_B & _WORD
        word = word * np.uint32(constant)
        words.append(word ^ (word >> np.uint32(16)))
    return words


def _add(high: Array, low: Array, other_high: Array, other_low: Array) -> tuple[Array, Array]:
    """Add numbers of 128 bits."""
    total = low + other_low
    return high + other_high + (total < low), total


def _multiply(high: Array, low: Array, other_high: Array, other_low: Array) -> tuple[Array, Array]:
    """Multiply numbers of 128 bits."""
    a_low, a_high = low & _LOW_WORD, low >> _S32
    b_low, b_high = other_low & _LOW_WORD, other_low >> _S32
    low_low, high_low, low_high = a_low * b_low, a_high * b_low, a_low * b_high
    middle = (low_low >> _S32) + (high_low & _LOW_WORD) + (low_high & _LOW_WORD)
    carried = a_high * b_high + (high_low >> _S32) + (low_high >> _S32) + (middle >> _S32)
    return carried + high * other_low + low * other_high, low * other_low


def _output(high: Array, low: Array) -> Array:
    """Return the 64 bits of each state: XSL-RR."""
    value, turn = high ^ low, high >> _S58
    rotated: Array = (value >> turn) | (value << ((_S64 - turn) & _S63))
    return rotated


@cache
def _jumps(count: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the factors of state and increment that give the states after 1 to `count` steps, [1, count] each."""
    factor, total, factors, totals = 1, 0, [], []
    for _ in range(count):
        factor, total = factor * _MULTIPLIER % 2**128, (total * _MULTIPLIER + 1) % 2**128
        factors.append(factor)
        totals.append(total)
    return _words(*factors), _words(*totals)


def _words(*numbers: int) -> tuple[Array, Array]:
    """Split numbers of 128 bits into two arrays of 64 bits."""
    return tuple(np.array([n >> shift & 2**64 - 1 for n in numbers], np.uint64) for shift in (64, 0))  # type: ignore[return-value]


class FewGenerators:
    """The same for few seeds, as numpy's own generators, which cost less then."""

    def __init__(self, seeds: Array) -> None:
        self._generators = [np.random.default_rng(seed) for seed in seeds.tolist()]

    def uniforms(self, count: int, low: float = 0.0, high: float = 1.0) -> Array:
        """Draw float64 [N, count]."""
        return np.stack([generator.uniform(low, high, count) for generator in self._generators])

    def integers(self, high: int) -> Array:
        """Draw int64 [N]."""
        return np.array([generator.integers(high) for generator in self._generators])


def generators(seeds: Array) -> Generators | FewGenerators:
    """Return the generators of `seeds`, int [N]; N is at least 1."""
    return FewGenerators(seeds) if len(seeds) < _FEW else Generators(seeds)


# About where both cost the same.
_FEW = 16
