"""The log-probability of clipped Gaussian actions and its derivatives in closed form, with numpy.

Equal to `GaussianActor.log_prob_and_entropy` with autograd. A clipped action has the whole mass beyond its bound
(Fujita and Maeda, 2018, arXiv:1802.07564).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from marlflow.learner.closed_form.ppo import PPORows, Vector, surrogate, value_gradient

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class GaussianRows(NamedTuple):
    """Actions of N rows in the coordinates of the means, [N, D], and which are at a bound, bool [N, D] each."""

    action: NDArray[Any]
    at_low: NDArray[np.bool_]
    at_high: NDArray[np.bool_]


class GaussianGradients(NamedTuple):
    """Gradients of the loss by the means [N, D], by the log standard deviations [D], and by the values [N]."""

    mean: Vector
    log_std: Vector
    value: Vector


def log_prob(mean: NDArray[Any], log_std: Vector, rows: GaussianRows) -> tuple[Vector, Vector, Vector]:
    """Return log-probabilities [N], and each component's derivatives by its mean and its log_std, [D, N] each."""
    # Transposed to [D, N], so that reductions over components are contiguous vector operations.
    inverse, width = np.exp(-log_std)[:, None], log_std[:, None]
    noise = np.ascontiguousarray((rows.action - mean).T) * inverse
    logp = -0.5 * noise * noise - width - np.float32(_HALF_LOG_TWO_PI)
    by_mean, by_log_std = noise * inverse, noise * noise - 1.0
    for at_bound, sign in ((rows.at_low.T, 1.0), (rows.at_high.T, -1.0)):
        if at_bound.any():
            # The mass below is Phi(noise), the mass above Phi(-noise); its derivative is the density.
            component, row = np.nonzero(at_bound)
            beyond = np.float32(sign) * noise[component, row]
            # numpy has none, and scipy takes long to import.
            mass = torch.special.log_ndtr(torch.from_numpy(beyond)).numpy()
            hazard = np.exp(-0.5 * beyond * beyond - np.float32(_HALF_LOG_TWO_PI) - mass)
            logp[component, row] = mass
            by_mean[component, row] = np.float32(-sign) * hazard * inverse[component, 0]
            by_log_std[component, row] = -beyond * hazard
    return np.add.reduce(logp, 0), by_mean, by_log_std


def gaussian_ppo_gradient(
    mean: NDArray[Any],
    log_std: Vector,
    v_tm1: Vector,
    rows: PPORows,
    actions: GaussianRows,
    *,
    clip_range: float,
    value: float,
    entropy: float,
    value_clip_range: float | None,
) -> tuple[dict[str, float], GaussianGradients]:
    """Compute the terms of PPO's loss and its gradients; as `ppo_gradient`, for Box actions.

    Args:
        mean: the trained policy's, [N, D].
        log_std: the trained policy's, [D].
        v_tm1: the critic's values, [N].
        rows: the minibatch; its actions are not read.
        actions: the actions of the minibatch.
        clip_range: where the probability ratio is clipped, as distance from 1.
        value: coefficient of the value loss.
        entropy: coefficient of the entropy bonus.
        value_clip_range: where values are clipped, as distance from `behavior_v_tm1`; None for no clipping.
    """
    count = len(v_tm1)
    logp, by_mean, by_log_std = log_prob(mean, log_std, actions)
    policy, kl, by_logp = surrogate(logp, rows.behavior_logp_t, rows.advantage_t, clip_range)
    values, by_value = value_gradient(v_tm1, rows.target_tm1, rows.behavior_v_tm1, value_clip_range)
    by_logp *= np.float32(1.0 / count)
    by_value *= np.float32(value / count)
    by_mean *= by_logp
    # The entropy of each component is log_std and a constant.
    of_log_std = by_log_std @ by_logp - np.float32(entropy)
    entropies = float(np.add.reduce(log_std)) + len(log_std) * (0.5 + _HALF_LOG_TWO_PI)
    terms = {"policy": policy, "value": values, "entropy": entropies, "kl": kl}
    return terms, GaussianGradients(by_mean.T, of_log_std, by_value)
