"""V-trace: values and advantages of a policy from what another, a little older one, did.

Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018,
https://arxiv.org/abs/1802.01561, section 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marlflow.losses.advantages import reverse_linear_recurrence


class VTraceEstimate(NamedTuple):
    """What V-trace finds for each step, [T, ...]: the value of its observation, and the advantage of its action.

    The advantage has the policy's importance weight in it already.
    """

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
    """Targets by equation 1 in the recursive form of remark 1, advantages by the policy gradient of section 4.2.

    All tensors are time-major, [T, ...], of one shape; no gradient flows. A step that ends a trajectory has discount 0
    if nothing follows it (termination), or else lambda 0 with `v_t` the value of what follows (truncation): either way
    nothing flows back across it, so trajectories of unequal length may stand one behind the other on the time axis.

    Args:
        r_t: rewards received after each step.
        discount_t: discounts of what follows each step.
        lambda_t: how much of the later corrections each step keeps (remark 2); 1 is V-trace as it was published.
        v_tm1: values of the observations that each step began with.
        v_t: values of the observations that followed each step.
        log_rho_tm1: log of the ratio of the actions' probabilities, the learning over the acting policy's.
        rho_max: where the ratio is cut in the corrections and the advantages; it decides which policy is valued.
        c_max: where the ratio is cut along the trajectory; it decides how far corrections reach back.
    """
    ratio_tm1 = torch.exp(log_rho_tm1)
    rho_tm1, c_tm1 = ratio_tm1.clamp(max=rho_max), ratio_tm1.clamp(max=c_max)
    td_tm1 = rho_tm1 * (r_t + discount_t * v_t - v_tm1)
    correction_tm1 = reverse_linear_recurrence(td_tm1, discount_t * lambda_t * c_tm1)
    correction_t = torch.cat([correction_tm1[1:], torch.zeros_like(correction_tm1[:1])])
    target_t = v_t + lambda_t * correction_t
    advantage_tm1 = rho_tm1 * (r_t + discount_t * target_t - v_tm1)
    return VTraceEstimate((v_tm1 + correction_tm1).detach(), advantage_tm1.detach())
