"""The behavioral cloning loss and its gradient in closed form, with numpy; equal to `losses.imitation`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marlflow.base.batch import Array

_LOWEST = np.finfo(np.float32).min


def cloning_gradient(logits: Array, action: Array, mask: Array | None) -> tuple[Mapping[str, float], Array]:
    """Compute the terms of the mean negative log-likelihood, and its gradient by `logits`.

    Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", 1989, NeurIPS.

    Args:
        logits: outputs of the trained network, float32 [N, A].
        action: legal actions of the expert, int64 [N].
        mask: legal actions, bool [N, A]; None if all are. Illegal actions get no gradient.
    """
    z = logits if mask is None else np.where(mask, logits, _LOWEST)
    z = z - np.maximum.reduce(z, 1, keepdims=True)
    weights = np.exp(z)
    total = np.add.reduce(weights, 1, keepdims=True)
    logp, probability = z - np.log(total), weights / total
    every, rows = np.arange(len(action)), np.float32(len(action))
    chosen = logp[every, action]
    # An illegal action has probability 0, and its log-probability is finite.
    entropy = -np.add.reduce(probability * logp, None) / rows
    probability[every, action] -= 1.0
    return {"policy": float(-chosen.mean()), "entropy": float(entropy)}, probability / rows
