"""Clipped double Q-learning: the minimum of K critics is the target, which counters overestimation.

Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018,
https://arxiv.org/abs/1802.09477, section 4.2.
"""

from __future__ import annotations

from torch import Tensor


def clipped_double_q_target(r_t: Tensor, discount_t: Tensor, q_t: Tensor) -> Tensor:
    """Compute one-step or n-step targets, [N], from the minimum target critic (equation 10).

    Args:
        r_t: rewards or n-step sums, [N].
        discount_t: the next value's discount, [N]; 0 if terminated.
        q_t: target critics' values of the next action, [K, N].
    """
    return (r_t + discount_t * q_t.amin(0)).detach()


def critics_loss(q_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """Sum half the squared errors of all critics, [N].

    Args:
        q_tm1: critics' values of the action taken, [K, N], with gradient.
        target_tm1: target values, [N].
    """
    return 0.5 * (q_tm1 - target_tm1).square().sum(0)
