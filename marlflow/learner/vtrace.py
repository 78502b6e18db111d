"""Off-policy advantages and value targets by V-trace."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.learner.advantages import Critic, values_around
from marlflow.learner.compute import tensors_on
from marlflow.losses.advantages import vtrace


class PolicyEvaluator(Protocol):
    """Has a policy module on a device; a TorchLearner, for example."""

    module: Any
    """Has an `actor` with `log_prob_and_entropy`."""
    device: torch.device


def log_probs(learner: PolicyEvaluator, batch: Batch) -> Array:
    """Return the log-probabilities of the batch's actions under the current actor, float32 [N], in nats."""
    return actor_log_probs(learner.module.actor, batch, learner.device)


def actor_log_probs(actor: Any, batch: Batch, device: torch.device) -> Array:
    """Return the log-probabilities of the batch's actions under `actor`, which is on `device`, float32 [N]."""
    tensor = tensors_on(device)
    with torch.inference_mode():
        outputs = actor(tensor(batch.columns["obs"]))
        mask = tensor(batch.columns["action_mask"]) if "action_mask" in batch.columns else None
        logp, _ = actor.log_prob_and_entropy(outputs, tensor(batch.columns["action"]), mask)
    array: Array = logp.cpu().numpy()
    return array


def corrected(
    batch: Batch,
    logp: Array,
    critic: Critic,
    discount: float,
    trace_lambda: float,
    rho_max: float,
    c_max: float,
    *,
    bootstrap_at_death: bool = False,
) -> EstimatedBatch:
    """Add columns `value`, `advantage` and `value_target` (float32 [N]) by V-trace, and the current `logp` [N].

    With `bootstrap_at_death` also `bootstrapped_at_death` (bool [N]), see `learner.deaths`.
    """
    value, next_value, at_death = values_around(batch, critic, bootstrap_at_death)
    # Segments are concatenated on one time axis; lambda 0 at their ends stops traces from crossing over.
    lambdas = np.full(batch.rows, trace_lambda)
    lambdas[batch.ends()] = 0.0
    log_rho = logp.astype(np.float64) - batch.columns["behavior_logp"]
    columns = (batch.columns["reward"], np.full(batch.rows, discount), lambdas, value, next_value, log_rho)
    r_t, discount_t, lambda_t, v_tm1, v_t, log_rho_tm1 = (torch.from_numpy(c.astype(np.float64)) for c in columns)
    estimate = vtrace(r_t, discount_t, lambda_t, v_tm1, v_t, log_rho_tm1, rho_max, c_max)
    estimates = {
        "value": value,
        "advantage": estimate.advantage_tm1.numpy().astype(np.float32),
        "value_target": estimate.target_tm1.numpy().astype(np.float32),
        "logp": logp,
        **at_death,
    }
    return EstimatedBatch({**batch.columns, **estimates}, batch.segments)
