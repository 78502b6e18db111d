"""V-trace: off-policy corrected value targets and advantages.

Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018,
https://arxiv.org/abs/1802.01561, section 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marlflow.losses.advantages import reverse_linear_recurrence


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
