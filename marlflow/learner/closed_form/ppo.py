"""The PPO loss for Discrete actions and its gradient in closed form, with numpy.

Equal to `losses.ppo` with autograd, whose bookkeeping for thirty operations costs more than a small network does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float32]
_LOWEST = np.finfo(np.float32).min


class PPORows(NamedTuple):
    """A minibatch of N rows; columns are [N], except for the mask, and Box actions."""

    action: NDArray[np.int64]
    behavior_logp_t: Vector
    advantage_t: Vector
    target_tm1: Vector
    behavior_v_tm1: Vector
    mask: NDArray[np.bool_] | None
    """Legal actions, [N, A]; None if all are legal."""


def ppo_gradient(
    logits: NDArray[Any],
    v_tm1: Vector,
    rows: PPORows,
    *,
    clip_range: float,
    value: float,
    entropy: float,
    value_clip_range: float | None,
) -> tuple[Mapping[str, float], Vector, Vector]:
    """Compute the terms of the loss, and its gradients by `logits` [N, A] and by `v_tm1` [N].

    Schulman et al., "Proximal policy optimization algorithms", 2017, https://arxiv.org/abs/1707.06347, equation 9.

    Args:
        logits: the trained policy's, [N, A].
        v_tm1: the critic's values, [N].
        rows: the minibatch.
        clip_range: where the probability ratio is clipped, as distance from 1.
        value: coefficient of the value loss.
        entropy: coefficient of the entropy bonus.
        value_clip_range: where values are clipped, as distance from `behavior_v_tm1`; None for no clipping.
    """
    count = len(v_tm1)
    # Transposed to [A, N], so that reductions over actions are contiguous vector operations.
    probability, logp = _softmax(logits.T, None if rows.mask is None else rows.mask.T)
    # One index into the flat array is quicker than two.
    taken = rows.action * count
    taken += np.arange(count)
    entropies = -np.add.reduce(probability * logp, 0)
    policy, kl, by_logp = surrogate(logp.reshape(-1)[taken], rows.behavior_logp_t, rows.advantage_t, clip_range)
    values, by_value = value_gradient(v_tm1, rows.target_tm1, rows.behavior_v_tm1, value_clip_range)
    # d logp[a] / d logit = 1[a] - p and d entropy / d logit = -p (logp + entropy), per action.
    gradient = (logp + entropies) * np.float32(entropy)
    gradient -= by_logp
    gradient *= probability
    gradient.reshape(-1)[taken] += by_logp
    gradient *= np.float32(1.0 / count)
    by_value *= np.float32(value / count)
    terms = {"policy": policy, "value": values, "entropy": float(np.add.reduce(entropies)) / count, "kl": kl}
    return terms, gradient.T, by_value


def _softmax(logits: NDArray[Any], mask: NDArray[np.bool_] | None) -> tuple[Vector, Vector]:
    """Return probabilities and log-probabilities, [A, N] each."""
    # Illegal actions get the lowest number rather than -inf, which times a probability of 0 would be NaN.
    logp = logits.copy()
    if mask is not None:
        np.putmask(logp, ~mask, _LOWEST)
    logp -= np.maximum.reduce(logp, 0)
    probability = np.exp(logp)
    total = np.add.reduce(probability, 0)
    probability /= total
    logp -= np.log(total)
    if mask is not None:
        np.maximum(logp, _LOWEST, out=logp)
    return probability, logp


def surrogate(logp: Vector, behavior_logp: Vector, advantage: Vector, clip_range: float) -> tuple[float, float, Vector]:
    """Return the mean surrogate loss, the mean KL estimate, and the summed loss's gradient by `logp`."""
    log_ratio = logp - behavior_logp
    ratio = np.exp(log_ratio)
    gain = ratio * advantage
    limited = np.minimum(np.maximum(ratio, 1.0 - clip_range), 1.0 + clip_range) * advantage
    loss = -float(np.add.reduce(np.minimum(gain, limited))) / len(logp)
    kl = float(np.add.reduce(ratio - log_ratio)) / len(logp) - 1.0
    # Where the clipped gain is the smaller one, the ratio is clipped, and its gradient is 0.
    return loss, kl, -gain * (gain <= limited)


def value_gradient(v_tm1: Vector, target: Vector, behavior_v: Vector, clip_range: float | None) -> tuple[float, Vector]:
    """Return the mean value loss, and the summed loss's gradient by `v_tm1`."""
    error = v_tm1 - target
    if clip_range is None:
        return float(np.add.reduce(error * error)) / (2 * len(error)), error
    change = v_tm1 - behavior_v
    clipped_error = np.clip(change, -clip_range, clip_range) + (behavior_v - target)
    squared, clipped_squared = error * error, clipped_error * clipped_error
    # The larger of the two losses counts; where that is the clipped one, its gradient is 0 outside the range.
    loss = float(np.add.reduce(np.maximum(squared, clipped_squared))) / (2 * len(error))
    return loss, error * ((squared >= clipped_squared) | (np.abs(change) <= clip_range))
