"""Rewards and costs combined by a Lagrange multiplier.

Ray, Achiam and Amodei, "Benchmarking safe exploration in deep reinforcement learning", 2019, section 4.
"""

from __future__ import annotations

from torch import Tensor


def constrained_policy_loss(loss_tm1: Tensor, q_cost_tm1: Tensor, multiplier: float) -> Tensor:
    """Compute (loss + multiplier * Q_cost) / (1 + multiplier), [N].

    Args:
        loss_tm1: the policy's loss in units of reward, [N], such as the negative soft value of its action.
        q_cost_tm1: the costs to come after that action, [N], with gradient to it.
        multiplier: the reward that a cost of 1 is worth, at least 0.
    """
    return (loss_tm1 + multiplier * q_cost_tm1) / (1.0 + multiplier)


def constrained_advantage(advantage_t: Tensor, cost_advantage_t: Tensor, multiplier: float) -> Tensor:
    """Compute (A - multiplier * A_cost) / (1 + multiplier), [N].

    The division keeps the scale of what is maximized as the multiplier rises.

    Args:
        advantage_t: advantages of rewards, [N], neither centered nor scaled.
        cost_advantage_t: advantages of costs, [N], likewise.
        multiplier: the reward that a cost of 1 is worth, at least 0.
    """
    return (advantage_t - multiplier * cost_advantage_t) / (1.0 + multiplier)
