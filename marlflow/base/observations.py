"""Row layout of observations: how an observation space becomes one array of one dtype.

- plain: a Box keeps its shape and dtype (uint8 pixels stay uint8); floats become float32.
- flat: any other space is one float32 vector in gymnasium's order: Discrete and MultiDiscrete values one-hot,
  MultiBinary as 0 and 1, Boxes flattened.
- packed: with a Box of uint8 among the leaves, the vector as bytes, each leaf in its own dtype, which takes a quarter
  of the memory for pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces

from marlflow.base.batch import Array
from marlflow.base.errors import ConfigInvalid

Path: TypeAlias = tuple[Any, ...]
"""Keys and positions from the root of nested Dict and Tuple spaces to a leaf."""

# A wider one-hot row is surely a mistake.
_WIDEST_ONE_HOT = 2**16


@dataclass(frozen=True, slots=True)
class Leaf:
    """One Box, Discrete, MultiDiscrete or MultiBinary of an observation, and its position in a row.

    `shape` is its own, or the one-hot width. `start` and `stop` count bytes in packed rows, else numbers of `dtype`.
    """

    path: Path
    space: spaces.Space[Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of numbers."""
        return math.prod(self.shape)

    @property
    def pixels(self) -> bool:
        """Whether the numbers are brightnesses, 0 to 255, which networks read as 0 to 1."""
        space = self.space
        if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
            return False
        return bool((space.low == 0).all() and (space.high == 255).all())


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """Rows of `shape` and `dtype`, and the leaves' positions in them; the module docstring defines the forms."""

    form: Literal["plain", "flat", "packed"]
    leaves: tuple[Leaf, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, rows: Array) -> Mapping[Path, Array]:
        """Return the leaves of `rows` [N, *shape] by path, each [N, *leaf.shape] in its dtype."""
        if self.form == "plain":
            return {self.leaves[0].path: rows}
        found = {}
        for leaf in self.leaves:
            # Only contiguous memory can be viewed in another dtype.
            part = np.ascontiguousarray(rows[:, leaf.start : leaf.stop])
            found[leaf.path] = part.view(leaf.dtype).reshape(len(rows), *leaf.shape)
        return found


def layout(space: spaces.Space[Any]) -> ObservationLayout:
    """Return the layout of `space`; raises ConfigInvalid with its `observation_problems`."""
    if problems := observation_problems(space):
        raise ConfigInvalid(problems)
    if isinstance(space, spaces.Box):
        dtype = row_dtype(space)
        leaf = Leaf((), space, space.shape, dtype, 0, math.prod(space.shape))
        return ObservationLayout("plain", (leaf,), space.shape, dtype)
    found = list(_leaf_spaces(space))
    packed = any(isinstance(inner, spaces.Box) and inner.dtype == np.uint8 for _, inner in found)
    leaves: list[Leaf] = []
    stop = 0
    for path, inner in found:
        start, shape = stop, _shape(inner)
        dtype = row_dtype(inner) if packed else np.dtype(np.float32)
        stop += math.prod(shape) * (dtype.itemsize if packed else 1)
        leaves.append(Leaf(path, inner, shape, dtype, start, stop))
    return ObservationLayout(
        "packed" if packed else "flat", tuple(leaves), (stop,), np.dtype(np.uint8 if packed else np.float32)
    )


def observation_problems(space: spaces.Space[Any]) -> list[str]:
    """Return why no policy supports observations of `space`, or an empty list."""
    found, numbers = [], 0
    for path, leaf in _leaf_spaces(space):
        if not isinstance(leaf, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            found.append(
                f"{named(path)} is a {type(leaf).__name__}, whose values have no fixed size; policies see Box, "
                "Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them: drop or encode it, by a wrapper"
            )
            continue
        size = math.prod(_shape(leaf))
        numbers += size
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) and size > _WIDEST_ONE_HOT:
            found.append(
                f"{named(path)} is {leaf}: one-hot, these are {size} numbers, and {_WIDEST_ONE_HOT} is the most; "
                "make it a Box, by a wrapper"
            )
    return found if found or numbers else [f"observation is {space}, which has nothing to see"]


def named(path: Path) -> str:
    """Format a leaf for errors: `observation['arm'][0]`."""
    return "observation" + "".join(f"[{key!r}]" for key in path)


def row_dtype(leaf: spaces.Space[Any]) -> np.dtype[Any]:
    """Return the dtype of a leaf's numbers: a Box's own, float32 for all floats, else uint8."""
    if not isinstance(leaf, spaces.Box):
        return np.dtype(np.uint8)
    own = np.dtype(leaf.dtype)
    return np.dtype(np.float32 if own.kind == "f" else own.type)


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
        # nvec may have a narrow dtype, in which the sum overflows.
        return (int(leaf.nvec.sum(dtype=np.int64)),)
    return tuple(leaf.shape or ())
