"""Model-agnostic meta-learning: the inner loss and the linear value baseline.

Finn, Abbeel and Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", 2017,
https://arxiv.org/abs/1703.03400
"""

from __future__ import annotations

import torch
from torch import Tensor


def likelihood_ratio_loss(logp_t: Tensor, behavior_logp_t: Tensor, advantage_t: Tensor) -> Tensor:
    """Compute the negative importance-weighted advantage, [N], the loss of inner steps.

    Its second derivative on-policy is the low-variance curvature of Rothfuss et al., "ProMP: proximal meta-policy
    search", 2019, https://arxiv.org/abs/1810.06784, equation 10; the second derivative of -logp_t * advantage_t lacks
    the products of gradients.

    Args:
        logp_t: the adapting policy's log-probabilities, [N], with gradient.
        behavior_logp_t: the behavior policy's, [N].
        advantage_t: advantages, [N].
    """
    return -torch.exp(logp_t - behavior_logp_t) * advantage_t


def fitted_values(
    features_tm1: Tensor, return_t: Tensor, discount_T: Tensor, features_T: Tensor, ridge: float
) -> Tensor:
    """Fit the weights [F] of a linear critic, v_tm1 = features_tm1 @ weights, by ridge regression.

    After Duan et al., "Benchmarking deep reinforcement learning for continuous control", 2016,
    https://arxiv.org/abs/1604.06778, supplement. Truncated trajectories bootstrap from the critic being fitted: v_tm1
    is fitted to return_t + discount_T * v_T.

    Args:
        features_tm1: features of each row, [N, F].
        return_t: discounted return to the trajectory's end, [N].
        discount_T: discount to the trajectory's end, [N]; 0 if terminated.
        features_T: features of the observation after it, [N, F].
        ridge: weight of the squared weights relative to the mean squared error.
    """
    # v_tm1 - discount_T * v_T is linear in the weights, with these coefficients.
    difference = features_tm1 - discount_T.unsqueeze(-1) * features_T
    moments = difference.T @ difference / len(difference)
    penalty = ridge * torch.eye(len(moments), dtype=moments.dtype)
    weights: Tensor = torch.linalg.solve(moments + penalty, difference.T @ return_t / len(difference))
    return weights
