"""Gather several agents' values into one array and check shape, dtype and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from marlflow.base.arrays import Array

_LARGEST = float(np.finfo(np.float32).max)


class Unfit(Exception):
    """A value is not in its space; the text says which and why."""


class Bounded:
    """Numbers of `shape` and `dtype` (float32, integer or bool) from `low` to `high`, [*shape] each.

    `name` is for errors, and `remedy` for those of a value out of bounds. Finite bounds beyond float32 become its
    largest number.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], low: Array, high: Array, remedy: str = ""
    ) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self._remedy = remedy
        self._low, self._high = (self._cast_bound(np.broadcast_to(np.asarray(bound), shape)) for bound in (low, high))
        self._least: Any = None
        self._most: Any = None
        self._verify: Callable[[Array], None] = self._cheapest_check()

    def gather(self, values: Sequence[Any] | Array) -> Array:
        """Copy the values of N >= 1 agents into [N, *shape]; raises Unfit."""
        try:
            rows = np.array(values)
        except (TypeError, ValueError) as error:
            raise self._wrong_shape(values[0]) from error
        if rows.shape[1:] != self.shape:
            raise self._wrong_shape(values[0])
        # The common case costs one copy and at most three vector operations; other dtypes take a slower path.
        if rows.dtype is not self.dtype:
            return self._convert(rows)
        self._verify(rows)
        return rows

    def _cast_bound(self, bound: Array) -> Array:
        if self.dtype.kind != "f":
            return np.asarray(bound, self.dtype)
        wide = np.asarray(bound, np.float64)
        return np.where(np.isinf(wide), wide, np.clip(wide, -_LARGEST, _LARGEST)).astype(np.float32)

    def _cheapest_check(self) -> Callable[[Array], None]:
        low, high = self._low, self._high
        if not low.size or (self.dtype.kind != "f" and _covers_dtype(self.dtype, low, high)):
            return _no_check
        if (low == low.flat[0]).all() and (high == high.flat[0]).all():
            self._least = low.item(0)
            self._most = None if high.item(0) == np.inf else high.item(0)
            return self._verify_equal_bounds
        return self._verify_each_bound

    def _verify_equal_bounds(self, rows: Array) -> None:
        # argmin and argmax are numpy's quickest reductions and return the position of a NaN, which fails the
        # comparison.
        if not rows.item(rows.argmin()) >= self._least:
            raise self._bad_value(rows, ~(rows >= self._low))
        if self._most is not None and rows.item(rows.argmax()) > self._most:
            raise self._bad_value(rows, rows > self._high)

    def _verify_each_bound(self, rows: Array) -> None:
        inside = (rows >= self._low) & (rows <= self._high)
        if inside.size and not inside.item(inside.argmin()):
            raise self._bad_value(rows, ~inside)

    def _convert(self, raw: Array) -> Array:
        if raw.dtype.kind not in "biuf":
            raise Unfit(f"{self.name} is not made of numbers: {raw[0]!r:.80}")
        if self.dtype.kind == "f":
            rows = self._to_float32(raw)
            self._verify(rows)
            return rows
        # Check before the cast, which would wrap integers out of range silently.
        whole = self._to_integers(raw) if raw.dtype.kind == "f" else raw
        if self._verify == self._verify_equal_bounds:
            self._verify_equal_bounds(whole)
        else:
            self._verify_each_bound(whole)
        return whole.astype(self.dtype)

    def _to_float32(self, raw: Array) -> Array:
        if not raw.size or (raw.item(raw.argmin()) >= -_LARGEST and raw.item(raw.argmax()) <= _LARGEST):
            return raw.astype(np.float32)
        with np.errstate(over="ignore"):
            rows: Array = raw.astype(np.float32)
        lost = np.isinf(rows) & np.isfinite(raw)
        if lost.any():
            raise self._bad_value(raw, lost)
        return rows

    def _to_integers(self, raw: Array) -> Array:
        raw = raw.astype(np.float64)
        wide: type[Any] = np.uint64 if self.dtype == np.uint64 else np.int64
        # As a float the maximum rounds up by one, hence `raw < last`.
        first, last = float(np.iinfo(wide).min), float(np.iinfo(wide).max)
        fit = (raw == np.rint(raw)) & (raw >= first) & (raw < last)
        if not fit.all():
            raise self._bad_value(raw, ~fit)
        if len(raw) > 1 and np.abs(raw).max(initial=0.0) > 2.0**53:
            # numpy turns a mix of int64 and uint64 into floats, which may have rounded large integers.
            raise Unfit(f"{self.name} is of several dtypes")
        return raw.astype(wide)

    def _bad_value(self, raw: Array, bad: Array) -> Unfit:
        """Describe the first of the `bad` values, bool [N, *shape]."""
        at = np.unravel_index(int(bad.argmax()), bad.shape)
        value, low, high = raw[at], self._low[at[1:]], self._high[at[1:]]
        if np.isnan(value):
            value_text, reason = "a NaN", ""
        else:
            value_text = str(value)
            if value < low:
                reason = f", below its bound {low!s}{self._remedy}"
            elif value > high:
                reason = f", above its bound {high!s}{self._remedy}"
            elif self.dtype.kind != "f":
                reason = f", not a whole number as {self.dtype} needs"
            else:
                reason = f", too large for {self.dtype}"
        if not self.shape:
            return Unfit(f"{self.name} is {value_text}{reason}")
        return Unfit(f"{self.name} has {value_text} at [{', '.join(map(str, at[1:]))}]{reason}")

    def _wrong_shape(self, value: Any) -> Unfit:
        try:
            shape = np.shape(value)
        except (TypeError, ValueError):
            return Unfit(f"{self.name} is not an array of shape {self.shape}: {value!r:.80}")
        if shape == () != self.shape:
            return Unfit(f"{self.name} is {value!r:.80}, not an array of shape {self.shape}")
        return Unfit(f"{self.name} has shape {shape}, not {self.shape}")


def _no_check(rows: Array) -> None:
    pass


def _covers_dtype(dtype: np.dtype[Any], low: Array, high: Array) -> bool:
    first, last = (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool((low == first).all() and (high == last).all())
