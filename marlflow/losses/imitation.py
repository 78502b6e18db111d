"""Imitation learning: behavioral cloning, and cloning weighted by advantage (MARWIL)."""

from __future__ import annotations

import torch
from torch import Tensor


def behavioral_cloning_loss(logp_t: Tensor) -> Tensor:
    """Compute the negative log-likelihood of the expert's actions, [N].

    Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", 1989, NeurIPS.

    Args:
        logp_t: the trained policy's log-probabilities of the expert's actions, [N], with gradient.
    """
    return -logp_t


def exponential_imitation_loss(
    logp_t: Tensor, advantage_t: Tensor, scale: Tensor, beta: float, max_weight: float
) -> Tensor:
    """Compute the negative log-likelihood, [N], weighted by exp(beta * advantage / scale).

    Wang et al., "Exponentially weighted imitation learning for batched historical data", 2018, NeurIPS, algorithm 1;
    weight limit: Peng et al., "Advantage-weighted regression", 2019, https://arxiv.org/abs/1910.00177. `beta` 0 is
    behavioral cloning.

    Args:
        logp_t: the trained policy's log-probabilities of the expert's actions, [N], with gradient.
        advantage_t: return minus the critic's value, [N].
        scale: root of the moving mean square of advantages, [], positive, in units of return.
        beta: exponent per `scale` of advantage.
        max_weight: largest weight of a row.
    """
    # An exponential that overflows to infinity is clamped, too; the weight has no gradient.
    weight = torch.exp((beta * advantage_t / scale).detach()).clamp(max=max_weight)
    return -weight * logp_t


def moving_average(before: Tensor, now: Tensor, rate: float) -> Tensor:
    """Move `before` toward the mean of `now` by the share `rate`, []; return `before` if that is not finite.

    Args:
        before: the average so far, [].
        now: new values, [N].
        rate: weight of the new values, from 0 to 1.
    """
    moved = before + rate * (now.mean() - before)
    return torch.where(torch.isfinite(moved), moved, before)
