"""Random observation spaces, and a slow, obviously right encoding of what is seen in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from marlflow.base.arrays import Array
from marlflow.base.observations import ObservationLayout, Path

FLOATS = (np.float16, np.float32, np.float64)
WHOLE = (np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, dtypes: tuple[Any, ...] = FLOATS + WHOLE) -> spaces.Box:
    """Boxes of any dtype and of up to three dimensions, with bounds of every kind."""
    dtype, shape = np.dtype(draw(st.sampled_from(dtypes))), draw(SHAPES)
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, np.bool_)
    first, last = (-100, 100) if dtype.kind in "if" else (0, 200)
    kind = draw(st.sampled_from(["alike", "each", "open"]))
    if kind == "open":
        if dtype.kind == "f":
            low, high = draw(st.sampled_from([(-np.inf, np.inf), (-1.5, np.inf), (-np.inf, 1.5)]))
        else:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return spaces.Box(low, high, shape, dtype)
    count = 1 if kind == "alike" else int(np.prod(shape))
    one, other = (
        np.broadcast_to(np.reshape([draw(st.integers(first, last)) for _ in range(count)], sides), shape)
        for sides in [shape if kind == "each" else ()] * 2
    )
    low, high = np.minimum(one, other), np.maximum(one, other)
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)


def leaves(dtypes: tuple[Any, ...] = FLOATS + WHOLE) -> st.SearchStrategy[spaces.Space[Any]]:
    start = st.integers(-3, 3)
    vector = st.lists(st.tuples(st.integers(1, 4), start), min_size=1, max_size=3)
    return st.one_of(
        boxes(dtypes),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), start),
        vector.map(lambda pairs: spaces.MultiDiscrete([n for n, _ in pairs], start=[s for _, s in pairs])),
        vector.map(lambda pairs: spaces.MultiDiscrete([[n for n, _ in pairs]] * 2, start=[[s for _, s in pairs]] * 2)),
        st.integers(1, 3).map(spaces.MultiBinary),
        SHAPES.filter(len).map(lambda shape: spaces.MultiBinary(list(shape))),
    )


def trees(dtypes: tuple[Any, ...] = FLOATS + WHOLE) -> st.SearchStrategy[spaces.Space[Any]]:
    """Spaces nested up to some levels; Dict's keys come in no order."""
    keys = st.text("zyxab", min_size=1, max_size=2)
    return st.recursive(
        leaves(dtypes),
        lambda inner: st.one_of(
            st.lists(st.tuples(keys, inner), min_size=1, max_size=3, unique_by=lambda pair: pair[0]).map(
                lambda pairs: spaces.Dict(dict(pairs))
            ),
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        ),
        max_leaves=5,
    )


def samples(space: spaces.Space[Any], count: int, seed: int) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def slow_leaves(space: spaces.Space[Any], seen: Any, path: Path = ()) -> Mapping[Path, tuple[spaces.Space[Any], Any]]:
    """The leaves in gymnasium's order, and what is seen there."""
    if isinstance(space, spaces.Dict):
        parts = [slow_leaves(inner, seen[key], (*path, key)) for key, inner in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [slow_leaves(inner, seen[at], (*path, at)) for at, inner in enumerate(space.spaces)]
    else:
        return {path: (space, seen)}
    return {where: leaf for part in parts for where, leaf in part.items()}


def slow_numbers(space: spaces.Space[Any], seen: Any) -> list[Any]:
    """A leaf's numbers, one at a time."""
    if isinstance(space, spaces.Discrete):
        return [int(seen == value) for value in range(int(space.start), int(space.start + space.n))]
    if isinstance(space, spaces.MultiDiscrete):
        found = []
        for index in np.ndindex(space.nvec.shape):
            first = int(space.start[index])
            found += [int(seen[index] == value) for value in range(first, first + int(space.nvec[index]))]
        return found
    return [seen[index] for index in np.ndindex(space.shape)]


def slow_row(layout: ObservationLayout, space: spaces.Space[Any], seen: Any) -> Array:
    """What the row of one observation should be, made of one number at a time."""
    by_leaf = [(leaf, slow_numbers(leaf, part)) for leaf, part in slow_leaves(space, seen).values()]
    if layout.form == "packed":
        packed = b"".join(np.array(numbers, own_dtype(leaf)).tobytes() for leaf, numbers in by_leaf)
        return np.frombuffer(packed, np.uint8)
    dtype = own_dtype(space) if layout.form == "plain" else np.float32
    flat = [number for _, numbers in by_leaf for number in numbers]
    return np.array(flat, dtype).reshape(layout.shape)


def own_dtype(leaf: spaces.Space[Any]) -> np.dtype[Any]:
    if not isinstance(leaf, spaces.Box):
        return np.dtype(np.uint8)
    return np.dtype(np.float32) if leaf.dtype.kind == "f" else np.dtype(leaf.dtype)


def with_replaced(seen: Any, path: Path, value: Any) -> Any:
    """A environment of an observation in which what stands at `path` is another."""
    if not path:
        return value
    key, *rest = path
    if isinstance(seen, dict):
        return {**seen, key: with_replaced(seen[key], tuple(rest), value)}
    return tuple(with_replaced(part, tuple(rest), value) if at == key else part for at, part in enumerate(seen))
