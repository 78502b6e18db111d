"""Policy gradients of actor-critic methods (A2C, A3C), Proximal Policy Optimization, and costs weighed with rewards.

Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, https://arxiv.org/abs/1602.01783; Schulman et
al., "Proximal policy optimization algorithms", 2017, https://arxiv.org/abs/1707.06347. Costs by a Lagrange multiplier:
Ray, Achiam and Amodei, "Benchmarking safe exploration in deep reinforcement learning", 2019, section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

# float32 overflows at 88.7, and the gradient would be NaN where an advantage is positive, and the loss clipped.
_HIGHEST_LOG_RATIO = 80.0


def policy_gradient_loss(logp_t: Tensor, advantage_t: Tensor) -> Tensor:
    """Compute the loss per row, [N], with gradient -advantage_t * grad logp_t (section 4).

    Args:
        logp_t: the trained policy's log-probabilities, [N], with gradient.
        advantage_t: advantages, [N].
    """
    return -logp_t * advantage_t.detach()


def clipped_surrogate_loss(logp_t: Tensor, behavior_logp_t: Tensor, advantage_t: Tensor, clip_range: float) -> Tensor:
    """Compute the negative clipped surrogate objective, [N] (equation 7).

    Args:
        logp_t: the trained policy's log-probabilities, [N], with gradient.
        behavior_logp_t: the behavior policy's, [N].
        advantage_t: advantages, [N].
        clip_range: largest distance of the probability ratio from 1.
    """
    log_ratio = logp_t - behavior_logp_t
    ratio = torch.exp(torch.where(advantage_t < 0.0, log_ratio, log_ratio.clamp(max=_HIGHEST_LOG_RATIO)))
    return -torch.minimum(ratio * advantage_t, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantage_t)


def value_loss(v_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """Compute half the squared error, [N].

    Args:
        v_tm1: the critic's values, [N], with gradient.
        target_tm1: target values, [N].
    """
    return 0.5 * (v_tm1 - target_tm1).square()


def clipped_value_loss(v_tm1: Tensor, behavior_v_tm1: Tensor, target_tm1: Tensor, clip_range: float) -> Tensor:
    """Compute half the squared error, [N], or half the squared error of the clipped value if it is larger.

    From the authors' code; Engstrom et al., "Implementation matters in deep policy gradients", 2020,
    https://arxiv.org/abs/2005.12729, section 3.

    Args:
        v_tm1: the critic's values, [N], with gradient.
        behavior_v_tm1: the critic's values at the targets' computation, [N].
        target_tm1: target values, [N].
        clip_range: largest change of a value, in units of return.
    """
    clipped = behavior_v_tm1 + (v_tm1 - behavior_v_tm1).clamp(-clip_range, clip_range)
    return 0.5 * torch.maximum((v_tm1 - target_tm1).square(), (clipped - target_tm1).square())


def approximate_kl(logp_t: Tensor, behavior_logp_t: Tensor) -> Tensor:
    """Estimate KL(behavior || trained), the KL divergence between the policies, [N], >= 0.

    Schulman, "Approximating KL divergence", 2020, http://joschu.net/blog/kl-approx.html, estimator k3.

    Args:
        logp_t: the trained policy's log-probabilities, [N].
        behavior_logp_t: the behavior policy's, [N].
    """
    log_ratio = logp_t - behavior_logp_t
    # expm1 keeps the digits of ratios near 1, which exp(x) - 1 would lose.
    return torch.expm1(log_ratio) - log_ratio


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

    The division keeps the scale of the objective as the multiplier rises.

    Args:
        advantage_t: advantages of rewards, [N], neither centered nor scaled.
        cost_advantage_t: advantages of costs, [N], likewise.
        multiplier: the reward that a cost of 1 is worth, at least 0.
    """
    return (advantage_t - multiplier * cost_advantage_t) / (1.0 + multiplier)
