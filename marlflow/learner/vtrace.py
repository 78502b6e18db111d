"""Advantages and value targets of rows that an older policy chose."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from marlflow.base.batch import Array, Batch, EstimatedBatch
from marlflow.learner.advantages import Critic, values_around
from marlflow.learner.compute import tensors_on
from marlflow.losses.vtrace import vtrace


class PolicyEvaluator(Protocol):
    """What knows how likely an action is; a learner, where it lives, is one."""

    module: Any
    """Its `actor` has `log_prob_and_entropy`."""
    device: torch.device


def log_probs(learner: PolicyEvaluator, batch: Batch) -> Array:
    """Log-probabilities of the actions of `batch` under the present actor, float32 [N], in nats."""
    tensor, actor = tensors_on(learner.device), learner.module.actor
    with torch.inference_mode():
        outputs = actor(tensor(batch.columns["obs"]))
        mask = tensor(batch.columns["action_mask"]) if "action_mask" in batch.columns else None
        logp, _ = actor.log_prob_and_entropy(outputs, tensor(batch.columns["action"]), mask)
    found: Array = logp.cpu().numpy()
    return found


def corrected(
    batch: Batch, logp: Array, critic: Critic, discount: float, trace_lambda: float, rho_max: float, c_max: float
) -> EstimatedBatch:
    """`batch` with columns `value`, `advantage` and `value_target` (float32 [N]), and `logp`, the present one [N].

    A segment that terminated is followed by value 0, any other by the value of its `bootstrap_obs`.
    """
    value, next_value = values_around(batch, critic)
    # Segments stand behind each other on one time axis; lambda 0 at their ends keeps them apart.
    lambdas = np.full(batch.rows, trace_lambda)
    lambdas[batch.ends()] = 0.0
    log_rho = logp.astype(np.float64) - batch.columns["behavior_logp"]
    columns = (batch.columns["reward"], np.full(batch.rows, discount), lambdas, value, next_value, log_rho)
    r_t, discount_t, lambda_t, v_tm1, v_t, log_rho_tm1 = (torch.from_numpy(c.astype(np.float64)) for c in columns)
    estimate = vtrace(r_t, discount_t, lambda_t, v_tm1, v_t, log_rho_tm1, rho_max, c_max)
    found = {
        "value": value,
        "advantage": estimate.advantage_tm1.numpy().astype(np.float32),
        "value_target": estimate.target_tm1.numpy().astype(np.float32),
        "logp": logp,
    }
    return EstimatedBatch({**batch.columns, **found}, batch.segments)
