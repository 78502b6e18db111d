"""The term of actor-critic methods that has a policy descend its own gradient.

Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, https://arxiv.org/abs/1602.01783
"""

from __future__ import annotations

from torch import Tensor


def policy_gradient_loss(logp_t: Tensor, advantage_t: Tensor) -> Tensor:
    """What has the gradient -advantage_t * grad logp_t for each row, [N] (Mnih et al., 2016, section 4).

    Args:
        logp_t: log-probabilities of the actions under the policy being trained, [N]; gradients flow here alone.
        advantage_t: advantage estimates, [N].
    """
    return -logp_t * advantage_t.detach()
