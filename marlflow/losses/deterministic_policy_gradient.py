"""Deterministic policy gradient (DDPG, TD3), clipped double Q-learning, and Discrete actions with a gradient.

Lillicrap et al., "Continuous control with deep reinforcement learning", 2016, https://arxiv.org/abs/1509.02971;
Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018,
https://arxiv.org/abs/1802.09477; the straight-through Gumbel-softmax estimator: Jang et al., "Categorical
reparameterization with Gumbel-softmax", 2017, https://arxiv.org/abs/1611.01144. Components of Box actions are in
[-1, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from marlflow.losses.q_learning import legal


def smoothed_action(a_t: Tensor, noise_t: Tensor, scale: float, clip: float) -> Tensor:
    """Add clipped noise to `a_t` for target policy smoothing, [N, D] (Fujimoto et al., section 5.3).

    Args:
        a_t: the target policy's next actions, [N, D].
        noise_t: standard normal samples, [N, D].
        scale: standard deviation of the noise.
        clip: largest change of a component.
    """
    return (a_t + (scale * noise_t).clamp(-clip, clip)).clamp(-1.0, 1.0)


def deterministic_policy_loss(q_tm1: Tensor) -> Tensor:
    """Compute the policy's loss per row, [N] (Lillicrap et al., equation 6).

    Args:
        q_tm1: the critic's value of the policy's action, [N], with gradient to it.
    """
    return -q_tm1


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
        target_tm1: target values, [N], or each critic's own, [K, N].
    """
    return 0.5 * (q_tm1 - target_tm1).square().sum(0)


def gumbel_noise(normal: Tensor) -> Tensor:
    """Return standard Gumbel numbers -log(-log Phi(z)) of standard normal numbers `normal`, of any shape."""
    # The logarithm of Phi is accurate in both tails, where Phi itself rounds to 0 or 1.
    return -torch.log(-torch.special.log_ndtr(normal))


def straight_through_sample(logits: Tensor, mask: Tensor | None, gumbel: Tensor, temperature: float) -> Tensor:
    """Sample one-hot actions, [N, A], with the gradient of a softmax (section 2.2).

    Args:
        logits: the policy's, [N, A], with gradient.
        mask: legal actions, bool [N, A]; None: all.
        gumbel: standard Gumbel noise, [N, A].
        temperature: of the softmax; a lower one has less bias and more variance.
    """
    soft = torch.softmax(legal(logits + gumbel, mask) / temperature, -1)
    return one_hot_best(logits + gumbel, mask) + (soft - soft.detach())


def one_hot_best(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the legal action with the highest score, one-hot float32 [N, A].

    Args:
        scores: logits (for the greedy action), or logits with Gumbel noise (for a sample), [N, A].
        mask: legal actions, bool [N, A]; None: all.
    """
    return functional.one_hot(legal(scores, mask).argmax(-1), scores.shape[-1]).float()
