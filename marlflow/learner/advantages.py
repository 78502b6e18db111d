"""Advantages and value targets of a batch, by the formulas of losses.gae_and_vtrace: GAE and V-trace.

The stages of plans that call these functions are in stages.estimates and stages.joint_updates.

A truncated segment is bootstrapped from the value of the observation after its last row; a terminated one is not.

`bootstrap_at_death` gives credit beyond an agent's death, for teams with a common reward: rewards after the death of
one of its agents may be due to that agent. The value after its last row is then not 0 but an estimate of the survivors'
(posthumous credit; Cohen et al., 2021, arXiv:2111.05992).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.learner.compute import tensors_on
from marlflow.losses.gae_and_vtrace import generalized_advantage_estimation, vtrace
from marlflow.losses.policy_gradient import constrained_advantage


def bootstrap_by_survivors(batch: Batch, next_value: Array) -> tuple[Array, Array]:
    """Return `next_value` [N] with values after the last rows of agents that others outlive, and which, bool [N].

    Such a row gets the mean next value of the agents of this policy that decided at the same env step of its episode
    and have not terminated. So all agents must decide at every env step, as in Parallel environments. It is not the
    critic's value for the dead agent itself, which has no rows and so never trained the critic there.
    """
    died = np.zeros(batch.rows, bool)
    died[batch.ends()[batch.segments["terminated"]]] = True
    if not died.any():
        return next_value, died
    moments = np.stack([batch["env"], batch["episode"], batch["t_env"]])
    _, group = np.unique(moments, axis=1, return_inverse=True)
    group = group.reshape(-1)
    counts = np.bincount(group, ~died)
    sums = np.bincount(group, np.where(died, 0.0, next_value))
    died &= counts[group] > 0
    means = (sums / np.maximum(counts, 1.0)).astype(next_value.dtype)
    return np.where(died, means[group], next_value), died


class Critic(Protocol):
    """Estimates returns; a learner, for example."""

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """Return the values, float32 [N], of `obs` [N, ...] and, if it is recurrent, `memory` [N, ...]."""
        ...


def advantages(
    batch: Batch, learner: Critic, discount: float, gae_lambda: float, bootstrap_at_death: bool = False
) -> EstimatedBatch:
    """Add columns `value`, `advantage` and `value_target` (float32 [N]) by the learner's current critic.

    With `bootstrap_at_death` also `bootstrapped_at_death` (bool [N]), see `learner.advantages`.
    """
    value, next_value, at_death = values_around(batch, learner, bootstrap_at_death)
    estimate, target = _estimates(batch, "reward", value, next_value, discount, gae_lambda)
    estimates = {"value": value, "advantage": estimate, "value_target": target, **at_death}
    return EstimatedBatch({**batch.columns, **estimates}, batch.segments)


def with_cost_advantages(
    batch: EstimatedBatch, cost_critic: Critic, discount: float, gae_lambda: float, multiplier: float
) -> EstimatedBatch:
    """Estimate advantages of costs too, and combine both by `multiplier`, the reward that a cost of 1 is worth.

    Adds columns `cost_advantage` and `cost_value_target` (float32 [N]); `advantage` becomes
    (advantage - multiplier * cost_advantage) / (1 + multiplier), which is not normalized yet.
    """
    value, next_value, _ = values_around(batch, cost_critic)
    of_cost, target = _estimates(batch, "cost", value, next_value, discount, gae_lambda)
    advantage_t, of_cost_t = (torch.from_numpy(a.astype(np.float64)) for a in (batch.columns["advantage"], of_cost))
    combined = constrained_advantage(advantage_t, of_cost_t, multiplier).numpy().astype(np.float32)
    columns = {"advantage": combined, "cost_advantage": of_cost, "cost_value_target": target}
    return EstimatedBatch({**batch.columns, **columns}, batch.segments)


def _estimates(
    batch: Batch, received: str, value: Array, next_value: Array, discount: float, gae_lambda: float
) -> tuple[Array, Array]:
    """Return advantages and value targets of the column `received`, float32 [N] each."""
    # Segments are concatenated on one time axis; lambda 0 at their ends stops traces from crossing over.
    lambdas = np.full(batch.rows, gae_lambda)
    lambdas[batch.ends()] = 0.0
    r_t = torch.from_numpy(batch.columns[received].astype(np.float64))
    v_tm1, v_t = (torch.from_numpy(column.astype(np.float64)) for column in (value, next_value))
    discount_t = torch.full_like(r_t, discount)
    estimate = generalized_advantage_estimation(r_t, discount_t, torch.from_numpy(lambdas), v_tm1, v_t)
    return estimate.numpy().astype(np.float32), (estimate + v_tm1).numpy().astype(np.float32)


def values_around(
    batch: Batch, learner: Critic, bootstrap_at_death: bool = False
) -> tuple[Array, Array, dict[str, Array]]:
    """Return the current critic's values of each row and of the one after it, float32 [N] each.

    The critic reads the column `central` if there is one, else `obs`. The mapping has the column
    `bootstrapped_at_death` (bool [N]) if `bootstrap_at_death`, else nothing.
    """
    ends, follows = batch.ends(), ~batch.segments["terminated"]
    if "central" in batch.columns:
        seen, memory, end_memory = "central", None, None
    else:
        # A recurrent critic starts from the memory at sampling time, which an older version may have computed.
        seen, memory, end_memory = "obs", batch.columns.get("memory"), batch.segments.get("bootstrap_memory")
    value = learner.values(batch.columns[seen], memory)
    # 0 after a terminated segment.
    bootstrap = np.zeros(len(ends), np.float32)
    after = None if end_memory is None else end_memory[follows]
    bootstrap[follows] = learner.values(batch.segments[f"bootstrap_{seen}"][follows], after)
    next_value = np.roll(value, -1)
    next_value[ends] = bootstrap
    if not bootstrap_at_death:
        return value, next_value, {}
    next_value, died = bootstrap_by_survivors(batch, next_value)
    return value, next_value, {"bootstrapped_at_death": died}


def normalized(batch: EstimatedBatch, sum_over_shards: Callable[[list[float]], list[float]] = list) -> EstimatedBatch:
    """Normalize the `advantage` column to mean 0 and standard deviation 1 over all rows, of all shards of the batch.

    `sum_over_shards` returns sums over all shards of numbers of this one.
    """
    # A shard without rows may have no column, and takes part in the sums.
    advantage = batch.columns["advantage"].astype(np.float64) if batch.rows else np.zeros(0)
    rows, total = sum_over_shards([float(len(advantage)), float(advantage.sum())])
    if not rows:
        return batch
    deviation = advantage - total / rows
    (squares,) = sum_over_shards([float((deviation * deviation).sum())])
    if not batch.rows:
        return batch
    # The small number keeps equal advantages from being divided by 0.
    scaled = (deviation / (np.sqrt(squares / rows) + 1e-8)).astype(np.float32)
    return replace(batch, columns={**batch.columns, "advantage": scaled})


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

    With `bootstrap_at_death` also `bootstrapped_at_death` (bool [N]), see `learner.advantages`.
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
