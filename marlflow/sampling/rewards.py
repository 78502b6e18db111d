"""Convert rewards and costs of environments to finite numbers."""

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


def cost_values(costs: Sequence[Any], is_read: Array) -> Array:
    """Return `costs` as float64 [N], 0 where not `is_read` (bool [N]); raises WrongReward for the first wrong one."""
    values = np.asarray(costs) if all(type(cost) in _NUMBERS for cost in costs) else np.empty(0)
    if values.shape == is_read.shape and values.dtype.kind in "biuf" and np.isfinite(values).all():
        return np.where(is_read, values, 0.0)
    read = zip(costs, is_read.tolist(), strict=True)
    return np.array([_cost_value(position, cost) if used else 0.0 for position, (cost, used) in enumerate(read)])


_NUMBERS = frozenset({float, int, bool, np.float64, np.float32})


def _cost_value(position: int, cost: Any) -> float:
    if cost is None:
        raise WrongReward(position, _NO_COST)
    number = np.asarray(cost)
    if number.size != 1 or number.dtype.kind not in "biuf" or not np.isfinite(number).all():
        raise WrongReward(position, f"info['cost'] is {cost!r}, not a finite number")
    return float(number.item())


_NO_COST = (
    "step() gave no info['cost'] for an agent that acted, and its policy has a cost_limit; give 0.0 where there is "
    "none, or set algorithm.cost_limit=null"
)


def _reward_value(position: int, reward: Any) -> float:
    number = np.asarray(reward)
    if number.size != 1 or number.dtype.kind not in "biuf" or not np.isfinite(number).all():
        raise WrongReward(position, f"the reward is {reward!r}, not a finite number")
    return float(number.item())
