"""Encode N agents' observations as N rows of the `obs` column, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.bounds import Bounded, Unfit
from marlflow.base.observations import Leaf, Path, layout, named, row_dtype


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
