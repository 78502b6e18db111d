"""The terms of Model-Agnostic Meta-Learning that other methods do not have.

Finn, Abbeel and Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", 2017,
https://arxiv.org/abs/1703.03400
"""

from __future__ import annotations

import torch
from torch import Tensor


def likelihood_ratio_loss(logp_t: Tensor, behaviour_logp_t: Tensor, advantage_t: Tensor) -> Tensor:
    """The negative importance-weighted advantage of each row, [N]: what an inner step descends.

    Where the policy is the one that chose, its gradient is the policy gradient, and its second derivative is the low
    variance curvature of Rothfuss et al., "ProMP: proximal meta-policy search", 2019,
    https://arxiv.org/abs/1810.06784, equation 10: that of -logp_t * advantage_t would lack the products of gradients.

    Args:
        logp_t: log-probabilities of the actions under the policy that adapts, [N]; gradients flow here alone.
        behaviour_logp_t: log-probabilities of the same actions when they were chosen, [N].
        advantage_t: advantage estimates, [N].
    """
    return -torch.exp(logp_t - behaviour_logp_t) * advantage_t


def fitted_values(
    features_tm1: Tensor, return_t: Tensor, discount_T: Tensor, features_T: Tensor, ridge: float
) -> Tensor:
    """Weights [F] of a linear critic, v_tm1 = features_tm1 @ weights, by least squares on one batch of rows.

    After Duan et al., "Benchmarking deep reinforcement learning for continuous control", 2016,
    https://arxiv.org/abs/1604.06778, supplement. A trajectory that goes on after its last row is followed there by its
    own value: v_tm1 is fitted to return_t + discount_T * v_T with both values linear in the weights.

    Args:
        features_tm1: what the critic knows of each row, [N, F].
        return_t: discounted sums of the rewards from each row to the end of its trajectory, [N].
        discount_T: discounts of what follows the trajectory's end, as seen from each row; 0 where it terminated, [N].
        features_T: what the critic knows of the end of each row's trajectory, [N, F].
        ridge: weight of the squared weights beside the mean squared error.
    """
    difference = features_tm1 - discount_T.unsqueeze(-1) * features_T
    moments = difference.T @ difference / len(difference)
    penalty = ridge * torch.eye(len(moments), dtype=moments.dtype)
    weights: Tensor = torch.linalg.solve(moments + penalty, difference.T @ return_t / len(difference))
    return weights
