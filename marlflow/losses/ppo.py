"""The terms of Proximal Policy Optimization.

Schulman et al., "Proximal policy optimization algorithms", 2017, https://arxiv.org/abs/1707.06347
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate_loss(logp_t: Tensor, behaviour_logp_t: Tensor, advantage_t: Tensor, clip_range: float) -> Tensor:
    """The negative clipped surrogate objective of each row, [N] (Schulman et al., 2017, equation 7).

    Args:
        logp_t: log-probabilities of the actions under the policy being trained, [N]; gradients flow here alone.
        behaviour_logp_t: log-probabilities of the same actions when they were chosen, [N].
        advantage_t: advantage estimates, [N].
        clip_range: how far the probability ratio may leave 1 before it earns nothing more.
    """
    ratio = torch.exp(logp_t - behaviour_logp_t)
    return -torch.minimum(ratio * advantage_t, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantage_t)


def value_loss(v_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """Half the squared error of each row, [N].

    Args:
        v_tm1: the critic's values, [N]; gradients flow here alone.
        target_tm1: what they should have been, [N].
    """
    return 0.5 * (v_tm1 - target_tm1).square()


def clipped_value_loss(v_tm1: Tensor, behaviour_v_tm1: Tensor, target_tm1: Tensor, clip_range: float) -> Tensor:
    """Half the squared error of each row, [N], or of its clipped value where that is worse.

    Of the authors' code rather than their paper; Engstrom et al., "Implementation matters in deep policy gradients",
    2020, https://arxiv.org/abs/2005.12729, section 3.

    Args:
        v_tm1: the critic's values, [N]; gradients flow here alone.
        behaviour_v_tm1: the values that the critic gave when the targets were computed, [N].
        target_tm1: what they should have been, [N].
        clip_range: how far a value may leave its old one, in units of return, before it gains nothing more.
    """
    clipped = behaviour_v_tm1 + (v_tm1 - behaviour_v_tm1).clamp(-clip_range, clip_range)
    return 0.5 * torch.maximum((v_tm1 - target_tm1).square(), (clipped - target_tm1).square())


def approximate_kl(logp_t: Tensor, behaviour_logp_t: Tensor) -> Tensor:
    """An estimate of the divergence of the trained from the behaviour policy for each row, [N]; never negative.

    Schulman, "Approximating KL divergence", 2020, http://joschu.net/blog/kl-approx.html, estimator k3.

    Args:
        logp_t: log-probabilities of the actions under the policy being trained, [N].
        behaviour_logp_t: log-probabilities of the same actions when they were chosen, [N].
    """
    log_ratio = logp_t - behaviour_logp_t
    return torch.expm1(log_ratio) - log_ratio
