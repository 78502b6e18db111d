"""Random opening moves, so that self-play learns from more situations than its own games reach."""

from __future__ import annotations

from typing import Any

import numpy as np
from pettingzoo import AECEnv
from pettingzoo.utils import BaseWrapper

from marlflow.base.spaces import choices_of
from marlflow.env.wrappers.random_action import random_legal_action

_MASK = "action_mask"


class RandomOpening(BaseWrapper[Any, Any, Any]):
    """Begins each episode with 0 to `moves` uniformly random legal moves, all numbers equally likely.

    The seed of `reset` decides them. An opening that ends an agent, or in which one gets a reward, is not played: the
    episode then begins as without this wrapper.
    """

    def __init__(self, env: AECEnv[Any, Any, Any], moves: int) -> None:
        super().__init__(env)
        self._moves = moves
        self._random = np.random.default_rng()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        # So that an opening which is not played can be taken back, whether or not there is a seed.
        start = seed if seed is not None else int(self._random.integers(2**31))
        super().reset(seed=start, options=options)
        for _ in range(int(self._random.integers(self._moves + 1))):
            self.step(self._move())
            ended = any(self.terminations.values()) or any(self.truncations.values())
            if ended or any(self.rewards.values()):
                super().reset(seed=start, options=options)
                return

    def _move(self) -> Any:
        observation, _, _, _, info = self.last()
        mask = observation.get(_MASK) if isinstance(observation, dict) else None
        mask = info.get(_MASK) if mask is None else mask
        space = self.action_space(self.agent_selection)
        return random_legal_action(space, np.ones(sum(choices_of(space))) if mask is None else mask, self._random)
