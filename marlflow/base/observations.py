"""Row layout of observations: how an observation space becomes one array of one dtype.

- plain: a Box keeps its shape and dtype (uint8 pixels stay uint8); floats become float32.
- flat: other spaces become a float32 vector in gymnasium's order: Discrete and MultiDiscrete one-hot, MultiBinary as
  0 and 1, Boxes flattened.
- packed: with a uint8 Box among the leaves, a vector of bytes, each leaf in its own dtype (pixels take a quarter of
  the memory).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid

Path: TypeAlias = tuple[Any, ...]
"""Keys and positions from the root of nested Dict and Tuple spaces to a leaf."""

BRIGHTEST: Final = 255.0
"""The highest number of a pixel, which networks scale to 1."""
# A wider one-hot row is surely a mistake.
_WIDEST_ONE_HOT = 2**16


@dataclass(frozen=True, slots=True)
class Leaf:
    """A Box, Discrete, MultiDiscrete or MultiBinary in an observation, and its position in a row.

    `shape` may be a one-hot width. `start` and `stop` count bytes if packed, else numbers of `dtype`.
    """

    path: Path
    space: spaces.Space[Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Count of numbers."""
        return math.prod(self.shape)

    @property
    def pixels(self) -> bool:
        """Whether it is a uint8 image, 0 to 255, which networks scale to 0 to 1."""
        space = self.space
        if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
            return False
        return bool((space.low == 0).all() and (space.high == 255).all())


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """The `form` (see the module docstring), shape and dtype of rows, and their leaves' positions."""

    form: Literal["plain", "flat", "packed"]
    leaves: tuple[Leaf, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, rows: Array) -> Mapping[Path, Array]:
        """Return the leaves of `rows` [N, *shape] by path, [N, *leaf.shape] each."""
        if self.form == "plain":
            return {self.leaves[0].path: rows}
        parts = {}
        for leaf in self.leaves:
            # Only contiguous memory can be viewed in another dtype.
            part = np.ascontiguousarray(rows[:, leaf.start : leaf.stop])
            parts[leaf.path] = part.view(leaf.dtype).reshape(len(rows), *leaf.shape)
        return parts


def layout(space: spaces.Space[Any]) -> ObservationLayout:
    """Return the layout of `space`; raises ConfigInvalid if unsupported."""
    if problems := observation_problems(space):
        raise ConfigInvalid(problems)
    if isinstance(space, spaces.Box):
        dtype = row_dtype(space)
        leaf = Leaf((), space, space.shape, dtype, 0, math.prod(space.shape))
        return ObservationLayout("plain", (leaf,), space.shape, dtype)
    leaf_spaces = list(_leaf_spaces(space))
    packed = any(isinstance(inner, spaces.Box) and inner.dtype == np.uint8 for _, inner in leaf_spaces)
    leaves: list[Leaf] = []
    stop = 0
    for path, inner in leaf_spaces:
        start, shape = stop, _shape(inner)
        dtype = row_dtype(inner) if packed else np.dtype(np.float32)
        stop += math.prod(shape) * (dtype.itemsize if packed else 1)
        leaves.append(Leaf(path, inner, shape, dtype, start, stop))
    return ObservationLayout(
        "packed" if packed else "flat", tuple(leaves), (stop,), np.dtype(np.uint8 if packed else np.float32)
    )


def observation_problems(space: spaces.Space[Any]) -> list[str]:
    """Return why policies cannot observe `space`, or an empty list."""
    problems: list[str] = []
    numbers = 0
    for path, leaf in _leaf_spaces(space):
        if not isinstance(leaf, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            problems.append(
                f"{named(path)} is a {type(leaf).__name__}, whose values have no fixed size; policies see Box, "
                "Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them: drop or encode it, by a wrapper"
            )
            continue
        size = math.prod(_shape(leaf))
        numbers += size
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) and size > _WIDEST_ONE_HOT:
            problems.append(
                f"{named(path)} is {leaf}: one-hot, these are {size} numbers, and {_WIDEST_ONE_HOT} is the most; "
                "make it a Box, by a wrapper"
            )
    return problems if problems or numbers else [f"observation is {space}, which has nothing to see"]


def named(path: Path) -> str:
    """Format a leaf for errors: `observation['arm'][0]`."""
    return "observation" + "".join(f"[{key!r}]" for key in path)


def row_dtype(leaf: spaces.Space[Any]) -> np.dtype[Any]:
    """Return a leaf's dtype: a Box's own, float32 for all floats, else uint8."""
    if not isinstance(leaf, spaces.Box):
        return np.dtype(np.uint8)
    dtype = np.dtype(leaf.dtype)
    return np.dtype(np.float32 if dtype.kind == "f" else dtype.type)


def _leaf_spaces(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaf_spaces(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for position, inner in enumerate(space.spaces):
            yield from _leaf_spaces(inner, (*path, position))
    else:
        yield path, space


def _shape(leaf: spaces.Space[Any]) -> tuple[int, ...]:
    if isinstance(leaf, spaces.Discrete):
        return (int(leaf.n),)
    if isinstance(leaf, spaces.MultiDiscrete):
        # nvec may have a narrow dtype, whose sum would overflow.
        return (int(leaf.nvec.sum(dtype=np.int64)),)
    return tuple(leaf.shape or ())
