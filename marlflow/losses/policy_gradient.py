"""Policy gradient loss of actor-critic methods (A2C, A3C).

Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, https://arxiv.org/abs/1602.01783
"""

from __future__ import annotations

from torch import Tensor


def policy_gradient_loss(logp_t: Tensor, advantage_t: Tensor) -> Tensor:
    """Compute the loss per row, [N], with gradient -advantage_t * grad logp_t (section 4).

    Args:
        logp_t: the trained policy's log-probabilities, [N], with gradient.
        advantage_t: advantages, [N].
    """
    return -logp_t * advantage_t.detach()
