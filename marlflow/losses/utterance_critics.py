"""Temporal differences of two critics of actions, and two of observations, that are each other's targets.

Zhou et al., "ArCHer: Training language model agents via hierarchical multi-turn RL", 2024,
https://arxiv.org/abs/2402.19446, section 3.3.
"""

from __future__ import annotations

from torch import Tensor


def action_value_target(r_t: Tensor, discount_t: Tensor, v_t: Tensor) -> Tensor:
    """Compute the target of each critic of actions, [K, N], from the same target critic of observations.

    Args:
        r_t: rewards, [N].
        discount_t: the next value's discount, [N]; 0 if terminated.
        v_t: target values of the next observation, [K, N].
    """
    return (r_t + discount_t * v_t).detach()


def squared_errors(value_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """Sum half the squared errors of K critics, [N].

    Args:
        value_tm1: critics' values, [K, N], with gradient.
        target_tm1: their targets, [K, N]: those above of critics of actions, and of critics of observations the
            target critics' values of an action that the current policy samples.
    """
    return 0.5 * (value_tm1 - target_tm1.detach()).square().sum(0)
