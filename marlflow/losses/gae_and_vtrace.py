"""Advantage estimation: GAE, and V-trace's off-policy corrected value targets and advantages.

These are the formulas alone, on time-major tensors. `learner.advantages` applies them to batches with a critic's
values, and the stages of `stages.estimates` call it in plans.

V-trace: Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures",
2018, https://arxiv.org/abs/1802.01561, section 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def generalized_advantage_estimation(
    r_t: Tensor, discount_t: Tensor, lambda_t: Tensor, v_tm1: Tensor, v_t: Tensor
) -> Tensor:
    """Compute GAE, [T, ...], by A_tm1 = r_t + discount_t v_t - v_tm1 + discount_t lambda_t A_t.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016,
    https://arxiv.org/abs/1506.02438, equation 16. All arguments are time-major, [T, ...]. A trajectory's last step has
    discount 0 (termination), or lambda 0 and the bootstrap value as `v_t` (truncation); trajectories may be
    concatenated along time.

    Args:
        r_t: rewards.
        discount_t: discounts.
        lambda_t: weight of later advantages (1) against values (0).
        v_tm1: values before the steps.
        v_t: values after them.
    """
    return reverse_linear_recurrence(r_t + discount_t * v_t - v_tm1, discount_t * lambda_t)


def reverse_linear_recurrence(x_t: Tensor, decay_t: Tensor) -> Tensor:
    """Solve y_t = x_t + decay_t * y_{t+1} backward in time, [T, ...], with y = 0 after the last step.

    Recursive doubling (Hillis and Steele, "Data parallel algorithms", 1986): the number of passes is log2 of the
    longest run of nonzero decays.

    Args:
        x_t: each step's term, [T, ...].
        decay_t: factor on the sum of later steps, [T, ...].
    """
    y_t, reach_t, span = x_t, decay_t, 1
    while span < len(x_t) and bool(torch.any(reach_t[:-span])):
        # After pass k, y_t holds its first 2**k terms and reach_t the product of that many decays.
        y_t = torch.cat([y_t[:-span] + reach_t[:-span] * y_t[span:], y_t[-span:]])
        reach_t = torch.cat([reach_t[:-span] * reach_t[span:], torch.zeros_like(reach_t[-span:])])
        span *= 2
    return y_t


class VTraceEstimate(NamedTuple):
    """Value targets and advantages, [T, ...]; the advantages include the importance weight rho."""

    target_tm1: Tensor
    advantage_tm1: Tensor


def vtrace(
    r_t: Tensor,
    discount_t: Tensor,
    lambda_t: Tensor,
    v_tm1: Tensor,
    v_t: Tensor,
    log_rho_tm1: Tensor,
    rho_max: float = 1.0,
    c_max: float = 1.0,
) -> VTraceEstimate:
    """Compute targets (equation 1, by remark 1) and advantages (section 4.2), without gradient.

    All tensors are time-major, [T, ...]. Trajectory ends are marked as in `generalized_advantage_estimation`.

    Args:
        r_t: rewards.
        discount_t: discounts.
        lambda_t: factor on later corrections (remark 2); 1 is V-trace as published.
        v_tm1: values before the steps.
        v_t: values after them.
        log_rho_tm1: log of the action probabilities' ratio, trained over behavior policy.
        rho_max: clip of the ratio in corrections and advantages; determines the valued policy.
        c_max: clip of the ratio along trajectories; limits how far corrections reach back.
    """
    ratio_tm1 = torch.exp(log_rho_tm1)
    rho_tm1, c_tm1 = ratio_tm1.clamp(max=rho_max), ratio_tm1.clamp(max=c_max)
    td_tm1 = rho_tm1 * (r_t + discount_t * v_t - v_tm1)
    correction_tm1 = reverse_linear_recurrence(td_tm1, discount_t * lambda_t * c_tm1)
    correction_t = torch.cat([correction_tm1[1:], torch.zeros_like(correction_tm1[:1])])
    # Section 4.2 takes the target of the next step, v_s+1, not its plain value.
    target_t = v_t + lambda_t * correction_t
    advantage_tm1 = rho_tm1 * (r_t + discount_t * target_t - v_tm1)
    return VTraceEstimate((v_tm1 + correction_tm1).detach(), advantage_tm1.detach())
