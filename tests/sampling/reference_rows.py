"""The reference's record of a decision and of observations, in the plainest form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from gymnasium import spaces


class Seen(NamedTuple):
    """The inputs of a decision; `version` computed the memory."""

    obs: np.ndarray
    mask: np.ndarray | None
    state: np.ndarray | None = None
    memory: np.ndarray | None = None
    version: int | None = None


@dataclass(eq=False)
class Row:
    seen: Seen
    action: np.ndarray
    logp: np.float32
    version: int
    t_env: int
    t_agent: int
    decided: int  # the tick
    complete: int | None = None  # after that tick
    reward: float = 0.0


@dataclass(eq=False)
class Trajectory:
    """One agent in one episode, from when it is first asked to its end."""

    slot: int
    episode: int
    policy: str
    rows: list[Row] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    final: Seen | None = None
    pending: Seen | None = None  # its observation when it must act, before the decision


class Segment(NamedTuple):
    """The rows of a trajectory that are in one fragment."""

    trajectory: Trajectory
    rows: list[Row]
    bootstrap: Seen
    ended: bool
    carried: bool


def parts(space, value):
    """The leaves of an observation as (array, whether it is a Box), one-hot where they are numbers."""
    if isinstance(space, spaces.Dict):
        return [part for name, inner in space.spaces.items() for part in parts(inner, value[name])]
    if isinstance(space, spaces.Tuple):
        return [part for inner, one in zip(space.spaces, value, strict=True) for part in parts(inner, one)]
    if isinstance(space, spaces.Discrete):
        return [(np.eye(int(space.n), dtype=np.uint8)[int(value) - int(space.start)], False)]
    if isinstance(space, spaces.MultiDiscrete):
        hot = [np.eye(n, dtype=np.uint8)[at] for n, at in zip(space.nvec, np.array(value) - space.start, strict=True)]
        return [(np.concatenate(hot), False)]
    if isinstance(space, spaces.MultiBinary):
        return [(np.array(value, np.uint8), False)]
    return [(np.array(value, np.float32 if space.dtype.kind == "f" else space.dtype), True)]


def as_row(space, value):
    """An observation as a row of the `obs` column: as it is, one float32 vector, or bytes where there are pixels."""
    found = parts(space, value)
    if isinstance(space, spaces.Box):
        return found[0][0]
    if any(is_box and array.dtype == np.uint8 for array, is_box in found):
        return np.frombuffer(b"".join(array.tobytes() for array, _ in found), np.uint8)
    return np.concatenate([array.reshape(-1).astype(np.float32) for array, _ in found])
