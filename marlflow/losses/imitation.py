"""The terms of imitation learning: what an expert did is made likely, all of it or what turned out well."""

from __future__ import annotations

import torch
from torch import Tensor


def behavioural_cloning_loss(logp_t: Tensor) -> Tensor:
    """The negative log-likelihood of what the expert did, of each row, [N].

    Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", 1989, NeurIPS.

    Args:
        logp_t: log-probabilities of the expert's actions under the policy being trained, [N]; gradients flow here.
    """
    return -logp_t


def exponential_imitation_loss(
    logp_t: Tensor, advantage_t: Tensor, scale: Tensor, beta: float, max_weight: float
) -> Tensor:
    """The negative log-likelihood of each row, [N], weighted by exp(beta * advantage / scale), at most `max_weight`.

    Wang et al., "Exponentially weighted imitation learning for batched historical data", 2018, NeurIPS, algorithm 1;
    the limit is of Peng et al., "Advantage-weighted regression", 2019, https://arxiv.org/abs/1910.00177. With `beta` 0
    it is behavioural cloning.

    Args:
        logp_t: log-probabilities of the expert's actions under the policy being trained, [N]; gradients flow here
            alone.
        advantage_t: by how much the return of each action was above the critic's value, [N].
        scale: the size of advantages, [], positive, in units of return: that of their moving mean square.
        beta: how much better actions count for more, per `scale` of advantage.
        max_weight: the most that a row counts.
    """
    exponent = (beta * advantage_t / scale).detach()
    # The limit goes into the exponent: its exponential may be infinite.
    return -torch.exp(exponent.clamp(max=torch.tensor(max_weight).log().item())) * logp_t


def moving_average(before: Tensor, now: Tensor, rate: float) -> Tensor:
    """`before` moved by the share `rate` of the way to the mean of `now`, []; where that is not finite, `before`.

    Args:
        before: the average so far, [].
        now: what is averaged, [N].
        rate: the share of what is new, from 0 to 1.
    """
    moved = before + rate * (now.mean() - before)
    return torch.where(torch.isfinite(moved), moved, before)
