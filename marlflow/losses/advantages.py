"""Estimates of advantages and returns from rewards and values."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantage_estimation(
    r_t: Tensor, discount_t: Tensor, lambda_t: Tensor, v_tm1: Tensor, v_t: Tensor
) -> Tensor:
    """Advantages, [T, ...], by the recursion A_tm1 = r_t + discount_t v_t - v_tm1 + discount_t lambda_t A_t.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016,
    https://arxiv.org/abs/1506.02438, equation 16. All arguments are time-major, [T, ...], of one shape. No advantage
    is known after the last step. A step that ends a trajectory has discount 0 if nothing follows it (termination), or
    else lambda 0 with `v_t` the value of what follows (truncation): either way nothing flows back across it, so
    trajectories of unequal length may stand one behind the other on the time axis.

    Args:
        r_t: rewards received after each step.
        discount_t: discounts of what follows each step.
        lambda_t: mixing of the values (0) and of the later advantages (1) at each step.
        v_tm1: values of the observations that each step began with.
        v_t: values of the observations that followed each step.
    """
    return reverse_linear_recurrence(r_t + discount_t * v_t - v_tm1, discount_t * lambda_t)


def reverse_linear_recurrence(x_t: Tensor, decay_t: Tensor) -> Tensor:
    """`y` [T, ...] with y_t = x_t + decay_t * y_{t+1}, where y is 0 after the last step.

    By recursive doubling (Hillis and Steele, "Data parallel algorithms", 1986): after pass k every y_t holds its first
    2**k terms, so that log2 of the longest run of nonzero decays is how many passes it takes.

    Args:
        x_t: what each step adds, [T, ...].
        decay_t: how much of the later steps each step keeps, [T, ...].
    """
    y_t, reach_t, span = x_t, decay_t, 1
    while span < len(x_t) and bool(torch.any(reach_t[:-span])):
        y_t = torch.cat([y_t[:-span] + reach_t[:-span] * y_t[span:], y_t[-span:]])
        reach_t = torch.cat([reach_t[:-span] * reach_t[span:], torch.zeros_like(reach_t[-span:])])
        span *= 2
    return y_t
