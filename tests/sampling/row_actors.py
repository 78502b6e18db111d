"""Actors that decide row by row by a plain function, which the reference calls too.

What is chosen depends on every byte that is seen, on the mask, the memory, the weights and the random number, so
whatever is mixed up shows in the next action and in all that follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
from gymnasium import spaces

from marlflow.base.random import key
from marlflow.policy.actor import Acted
from tests.sampling.fingerprints import fingerprint

MEMORY_SHAPE = (2,)


class Decision(NamedTuple):
    action: np.ndarray
    logp: np.float32
    memory: np.ndarray | None


def decide(space, parameter, obs, mask, memory, uniform):
    """One row's decision; the action counts from 0, whatever the space's start."""
    remembered = 0 if memory is None else crc32(memory.tobytes())
    number = key(crc32(np.ascontiguousarray(obs).tobytes()), remembered, int(parameter), int(uniform * 2**32))
    logp = np.float32(-(number % 9973) / 997)
    after = None if memory is None else np.array([memory[0] + 1, number % 4093], np.float32)
    if isinstance(space, spaces.Discrete):
        legal = np.arange(space.n) if mask is None else np.flatnonzero(mask)
        return Decision(legal[number % len(legal)], logp, after)
    start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
    action = fingerprint(space, number) - start
    return Decision(np.asarray(action, np.float32 if isinstance(space, spaces.Box) else np.int64), logp, after)


class RowActor:
    """Its one parameter is what was published last."""

    def __init__(self, space):
        self.space, self.parameter = space, np.zeros(1, np.float32)

    def act(self, obs, action_mask, memory, mode, generator):
        assert memory is None
        return self.decided(obs, action_mask, [None] * len(obs), mode, generator)

    def decided(self, obs, action_mask, memory, mode, generator):
        uniform = generator.uniform() if mode == "explore" else np.zeros(len(obs))
        masks = [None] * len(obs) if action_mask is None else action_mask
        rows = zip(obs, masks, memory, uniform, strict=True)
        made = [decide(self.space, self.parameter[0], *row) for row in rows]
        remembered = None if made[0].memory is None else np.stack([one.memory for one in made])
        return Acted(np.stack([one.action for one in made]), np.array([one.logp for one in made]), remembered)

    def set_schedule(self, values):
        raise AssertionError("nothing is scheduled")

    def flat(self):
        return self.parameter.copy()

    def load_flat(self, flat):
        self.parameter[:] = flat


class RememberingRowActor(RowActor):
    """Remembers how often it decided, and a fingerprint of all that it saw."""

    memory_shape = MEMORY_SHAPE

    def act(self, obs, action_mask, memory, mode, generator):
        assert memory.dtype == np.float32
        assert memory.shape == (len(obs), *MEMORY_SHAPE)
        made = self.decided(obs, action_mask, memory, mode, generator)
        memory[:] = -1  # a caller that keeps it makes a copy
        return made


@dataclass
class Policy:
    """The reference's facts of a policy: its current weights; if it has memory, sees the state, and is recorded."""

    action_space: spaces.Space
    version: int = -1
    parameter: float = 0.0
    remembers: bool = False
    sees_state: bool = False
    recorded: bool = True

    def actor(self):
        return (RememberingRowActor if self.remembers else RowActor)(self.action_space)

    def publish(self, version):
        self.version, self.parameter = version, version % 5 + 1.0
