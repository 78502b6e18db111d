"""Convert rewards of environments to finite numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marlflow.base.batch import Array


class WrongReward(Exception):
    """A reward, at `position`, that is not a finite number."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


def reward_values(rewards: Sequence[Any]) -> Array:
    """Return `rewards` as float64 [N]; raises WrongReward for the first that is not a finite number."""
    try:
        values = np.array(rewards, np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape == (len(rewards),) and np.isfinite(values).all():
        return values
    # One by one, to find the wrong reward or accept arrays of one number.
    return np.array([_reward_value(position, reward) for position, reward in enumerate(rewards)])


def _reward_value(position: int, reward: Any) -> float:
    number = np.asarray(reward)
    if number.size != 1 or number.dtype.kind not in "biuf" or not np.isfinite(number).all():
        raise WrongReward(position, f"the reward is {reward!r}, not a finite number")
    return float(number.item())
