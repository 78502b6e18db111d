"""Encode N agents' observations as N rows of the `obs` column, leaf by leaf, and check shape, dtype and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.observations import Leaf, Path, layout, named, row_dtype

_LARGEST = float(np.finfo(np.float32).max)


class Unfit(Exception):
    """A value is not in its space; the text says which and why."""


class Bounded:
    """Numbers of `shape` and `dtype` (float32, integer or bool) from `low` to `high`, [*shape] each.

    `name` is used in errors; `remedy` is added to the error of a value out of bounds. Finite bounds beyond float32
    become its largest number.
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


class ObservationOutside(ValueError):
    """Observation number `index`, from 0, is not in its space; `reason` begins with `observation`."""

    def __init__(self, index: int, reason: str) -> None:
        self.index, self.reason = index, reason
        super().__init__(index, reason)

    def __str__(self) -> str:
        return f"of several agents' observations, number {self.index} is not of its space: {self.reason}"


class Encoder:
    """Encodes observations of one space; raises ConfigInvalid for unsupported spaces."""

    def __init__(self, observation: spaces.Space[Any]) -> None:
        self.layout = layout(observation)
        if self.layout.form == "plain":
            self._rows: Callable[[Sequence[Any] | Array], Array] = _bounded(self.layout.leaves[0]).gather
        else:
            leaves = {leaf.path: leaf for leaf in self.layout.leaves}
            self._root = _node(observation, (), leaves, self.layout.form == "packed")
            self._rows = self._nested_rows

    def stack(self, observations: Sequence[Any] | Array) -> Array:
        """Encode N observations as rows, [N, *layout.shape], a copy; raises ObservationOutside.

        Accepts lists, dtypes that cast without loss, and extra keys of a Dict.
        """
        if not len(observations):
            return np.empty((0, *self.layout.shape), self.layout.dtype)
        try:
            return self._rows(observations)
        except Unfit:
            # Encode one row at a time to find the first bad observation.
            return np.concatenate([self._row(index, observation) for index, observation in enumerate(observations)])

    def _row(self, index: int, observation: Any) -> Array:
        try:
            return self._rows([observation])
        except Unfit as unfit:
            raise ObservationOutside(index, str(unfit)) from None

    def _nested_rows(self, observations: Sequence[Any] | Array) -> Array:
        rows = np.zeros((len(observations), *self.layout.shape), self.layout.dtype)
        self._root.write(observations, rows)
        return rows


class _Node(Protocol):
    def write(self, values: Sequence[Any] | Array, rows: Array) -> None:
        """Write N agents' values into their zeroed rows; raises Unfit."""
        ...


class _Branch:
    # A Dict, or a Tuple, which has a `length`.
    def __init__(self, path: Path, children: Sequence[tuple[Any, _Node]], length: int | None) -> None:
        self._name, self._length = named(path), length
        self._children = [(key, itemgetter(key), node) for key, node in children]

    def write(self, values: Sequence[Any] | Array, rows: Array) -> None:
        if self._length is not None:
            self._check_length(values)
        for key, pick, node in self._children:
            try:
                # itemgetter in a comprehension is the cheapest way to take one key of many dicts.
                inner = [pick(value) for value in values]
            except (KeyError, IndexError, TypeError) as error:
                text = f"has no {key!r}" if hasattr(values[0], "keys") else f"is {values[0]!r:.80}, not a dict"
                raise Unfit(f"{self._name} {text}") from error
            node.write(inner, rows)

    def _check_length(self, values: Sequence[Any] | Array) -> None:
        try:
            lengths = set(map(len, values))
        except TypeError as error:
            raise Unfit(f"{self._name} is {values[0]!r:.80}, not a tuple") from error
        if lengths - {self._length}:
            raise Unfit(f"{self._name} has {len(values[0])} entries, not {self._length}")


class _Numbers:
    # Box or MultiBinary, flattened.
    def __init__(self, leaf: Leaf, packed: bool) -> None:
        self._bounded = _bounded(leaf)
        self._where = slice(leaf.start, leaf.stop)
        self._packed = packed

    def write(self, values: Sequence[Any] | Array, rows: Array) -> None:
        numbers = self._bounded.gather(values).reshape(len(values), -1)
        # Only contiguous memory can be viewed as bytes.
        rows[:, self._where] = np.ascontiguousarray(numbers).view(np.uint8) if self._packed else numbers


class _OneHot:
    # Discrete or MultiDiscrete.
    def __init__(self, leaf: Leaf) -> None:
        self._bounded = _bounded(leaf)
        first, sizes = _first_and_sizes(leaf.space)
        # Adding this to a value gives the column of its 1.
        self._shift = leaf.start + np.cumsum(sizes) - sizes - first.ravel()
        self._agents: Array = np.arange(1)[:, None]

    def write(self, values: Sequence[Any] | Array, rows: Array) -> None:
        count = len(values)
        if len(self._agents) < count:
            self._agents = np.arange(count)[:, None]
        rows[self._agents[:count], self._bounded.gather(values).reshape(count, -1) + self._shift] = 1


def _node(space: spaces.Space[Any], path: Path, leaves: Mapping[Path, Leaf], packed: bool) -> _Node:
    if isinstance(space, spaces.Dict):
        inner = [(key, _node(child, (*path, key), leaves, packed)) for key, child in space.spaces.items()]
        return _Branch(path, inner, None)
    if isinstance(space, spaces.Tuple):
        entries = [(at, _node(child, (*path, at), leaves, packed)) for at, child in enumerate(space.spaces)]
        return _Branch(path, entries, len(entries))
    leaf = leaves[path]
    one_hot = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    return _OneHot(leaf) if one_hot else _Numbers(leaf, packed)


# Environments of others are seldom mended.
_OUTSIDE = "; wrappers=clip_observations clips it, wrappers=widen_bounds takes the bounds away"


def _bounded(leaf: Leaf) -> Bounded:
    space, name = leaf.space, named(leaf.path)
    if isinstance(space, spaces.Box):
        return Bounded(name, space.shape, row_dtype(space), space.low, space.high, _OUTSIDE)
    if isinstance(space, spaces.MultiBinary):
        return Bounded(name, leaf.shape, np.dtype(space.dtype), np.zeros(()), np.ones(()))
    first, sizes = _first_and_sizes(space)
    return Bounded(name, first.shape, first.dtype, first, first + (sizes.reshape(first.shape) - 1))


def _first_and_sizes(space: spaces.Space[Any]) -> tuple[Array, Array]:
    """Return a discrete space's least values, int64 in its shape, and numbers of values, [K]."""
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    sizes = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec, np.int64)
    return np.asarray(space.start, np.int64), sizes.reshape(-1)
