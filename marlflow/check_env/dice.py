"""Random legal actions for an environment that is played without a worker."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.random import key
from marlflow.base.spaces import DISCRETE_KINDS, choices_of, components

_SAMPLES = 256


class Dice:
    """Draws uniformly random actions, only legal ones where there is a mask."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._uniform = random.Random(seed).random
        self._samples: dict[str, list[Any]] = {}

    def choose(self, agent: str, space: spaces.Space[Any], mask: Any) -> Any:
        """Return an action of `agent`; raise EnvironmentFailed if its mask allows none."""
        if mask is not None and isinstance(space, DISCRETE_KINDS):
            return self._choose_legal(agent, space, np.asarray(mask))
        samples = self._samples.get(agent)
        if samples is None:
            # A copy, so that the generator of the environment's own space is left alone.
            seeded = copy.deepcopy(space)
            seeded.seed(key(self._seed, len(self._samples)) >> 33)
            samples = self._samples[agent] = [seeded.sample() for _ in range(_SAMPLES)]
        action = samples[int(self._uniform() * _SAMPLES)]
        # Samples are used many times, and an environment may write into an action.
        return action.copy() if isinstance(action, np.ndarray) else action

    def _choose_legal(self, agent: str, space: spaces.Space[Any], mask: Array) -> Any:
        chosen = []
        for part in components(mask[None], choices_of(space)):
            legal = np.flatnonzero(part)
            if not len(legal):
                raise EnvironmentFailed(f"agent {agent!r}", "its action mask allows no action")
            chosen.append(legal[int(self._uniform() * len(legal))])
        start = getattr(space, "start", 0)
        if isinstance(space, spaces.Discrete):
            return space.dtype.type(start + chosen[0])
        return (np.array(chosen).reshape(space.shape or ()) + start).astype(space.dtype)
