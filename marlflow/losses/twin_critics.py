"""Values of several critics of one action: what they learn from, and the pessimistic one of them.

The least of two critics counters the overestimation of a maximum (Fujimoto et al., "Addressing function approximation
error in actor-critic methods", 2018, https://arxiv.org/abs/1802.09477, section 4.2). With one critic it is that one's.
"""

from __future__ import annotations

from torch import Tensor


def clipped_double_q_target(r_t: Tensor, discount_t: Tensor, q_t: Tensor) -> Tensor:
    """One-step or n-step targets, [N], by the least of the target critics (Fujimoto et al., 2018, equation 10).

    Args:
        r_t: rewards, or discounted sums of them over n steps, [N].
        discount_t: what the value of the next observation is multiplied by, [N]; 0 after termination.
        q_t: each target critic's value of the next action, [K, N].
    """
    return (r_t + discount_t * q_t.amin(0)).detach()


def critics_loss(q_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """Half the squared errors of all critics for each row, [N].

    Args:
        q_tm1: each critic's value of the action taken, [K, N]; gradients flow here alone.
        target_tm1: what they should have been, [N].
    """
    return 0.5 * (q_tm1 - target_tm1).square().sum(0)
