"""Batches of meta-learning: rows by task, with advantages by linear critics.

Finn et al., "Model-agnostic meta-learning for fast adaptation of deep networks", 2017,
https://arxiv.org/abs/1703.03400, algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.learner.advantages import advantages, normalized
from marlflow.losses.gae_and_vtrace import reverse_linear_recurrence
from marlflow.losses.maml import fitted_values

_MAX_FEATURES = 64
_RIDGE = 1e-5
_LOSS_COLUMNS = ("obs", "action", "behavior_logp", "advantage", "action_mask")


@dataclass(frozen=True, slots=True)
class AdaptedBatch(EstimatedBatch):
    """A batch of whole meta-iterations, whose segments have columns `task` and `adapted` (inner steps so far)."""

    made_from: ClassVar[Mapping[str, str]] = {"Batch": ".then(Adapt(...), at=learner)"}


@dataclass(frozen=True, slots=True)
class TaskBatch(Batch):
    """A batch with one row per task, for T tasks and K inner steps.

    `obs`, `action`, `behavior_logp`, `advantage` and any `action_mask` are [T, K + 1, R, ...]: each task's agent steps
    by phase, padded to the largest number R. `weight` [T, K + 1, R] is 1 / (agent steps of the phase), and 0 for
    padding. `version` [T] is the oldest of each task. `agent_steps` is the total without padding.
    """

    made_from: ClassVar[Mapping[str, str]] = {"AdaptedBatch": ".then(ByTask(...), at=learner)"}

    agent_steps: int = 0

    @property
    def rows(self) -> int:
        """Number of tasks."""
        return len(self.columns["version"])


def linear_advantages(batch: Batch, discount: float, gae_lambda: float) -> EstimatedBatch:
    """Add `value`, normalized `advantage` and `value_target` by a linear critic for each environment.

    The segments of an environment must be adjacent.
    """
    env_indices = batch.segments["env"]
    parts = [
        _linear_advantages(batch.only(env_indices == env_index), discount, gae_lambda)
        for env_index in dict.fromkeys(env_indices.tolist())
    ]
    whole = Batch.concat(parts or [_linear_advantages(batch, discount, gae_lambda)])
    # The critics' features replaced the observations.
    return EstimatedBatch({**whole.columns, "obs": batch.columns["obs"]}, batch.segments)


def _linear_advantages(batch: Batch, discount: float, gae_lambda: float) -> EstimatedBatch:
    featured = _with_features(batch)
    return normalized(advantages(featured, _fit_critic(featured, discount), discount, gae_lambda))


def _fit_critic(batch: Batch, discount: float) -> _LinearCritic:
    ends, lengths, rows = batch.ends(), batch.segments["length"], np.arange(batch.rows)
    decay = np.full(batch.rows, discount)
    decay[ends] = 0.0
    return_t = reverse_linear_recurrence(torch.from_numpy(batch.columns["reward"]), torch.from_numpy(decay))
    # Truncated segments are bootstrapped with the critic to be fitted itself, at the features of their end.
    follows = np.repeat(~batch.segments["terminated"], lengths)
    discount_T = np.where(follows, discount ** (np.repeat(ends, lengths) + 1 - rows), 0.0)
    features_T = np.repeat(batch.segments["bootstrap_obs"], lengths, axis=0)
    if not batch.rows:
        return _LinearCritic(np.zeros(batch.columns["obs"].shape[1]))
    arrays = (batch.columns["obs"], discount_T, features_T)
    features, factor, after = (torch.from_numpy(array) for array in arrays)
    return _LinearCritic(fitted_values(features, return_t, factor, after, _RIDGE).numpy())


@dataclass(frozen=True, slots=True)
class _LinearCritic:
    weights: Array

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        del memory
        values: Array = (obs @ self.weights).astype(np.float32)
        return values


def _with_features(batch: Batch) -> Batch:
    """Replace observations by features, float64 [N, F] and [S, F]."""
    ends, t_agent = batch.ends(), batch.columns["t_agent"]
    after = _features(batch.segments["bootstrap_obs"], t_agent[ends] + 1)
    obs = _features(batch.columns["obs"], t_agent)
    return Batch({**batch.columns, "obs": obs}, {**batch.segments, "bootstrap_obs": after})


def _features(obs: Array, t_agent: Array) -> Array:
    # Features of Duan et al., 2016 (arXiv:1604.06778); large observations are left out, because they would overfit.
    clipped = np.clip(obs.reshape(len(obs), math.prod(obs.shape[1:])).astype(np.float64), -10.0, 10.0)
    if clipped.shape[1] > _MAX_FEATURES:
        clipped = clipped[:, :0]
    time = t_agent[:, None] / 100.0
    return np.concatenate([clipped, clipped**2, time, time**2, time**3, np.ones_like(time)], axis=1)


def laid_out(batch: Batch, group: Array, groups: int) -> dict[str, Array]:
    """Arrange the rows' columns by `group` [N] into [G, R, ...], in order and padded.

    `weight` [G, R] is 1 / (rows of the group), and 0 for padding.
    """
    counts = np.bincount(group, minlength=groups)
    order = np.argsort(group, kind="stable")
    # Each row's index within its group.
    position = np.empty(len(group), np.int64)
    position[order] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = {}
    for name in _LOSS_COLUMNS:
        if name in batch.columns:
            column = batch.columns[name]
            # Padding rows need a legal action, so that their log-probabilities are finite.
            fill = np.ones if name == "action_mask" else np.zeros
            columns[name] = fill((groups, int(counts.max(initial=0)), *column.shape[1:]), column.dtype)
            columns[name][group, position] = column
    weight = np.zeros((groups, int(counts.max(initial=0))), np.float32)
    weight[group, position] = 1.0 / counts[group]
    return {**columns, "weight": weight}


def by_task(batch: Batch, inner_steps: int) -> TaskBatch:
    """Arrange the rows of `batch` by task and phase."""
    phases, adapted = inner_steps + 1, batch.segments["adapted"]
    names = np.stack([batch.segments["env"], batch.segments["task"]], axis=1)
    # Tasks without rows of the last phase are incomplete, and dropped.
    complete = np.unique(names[adapted == inner_steps], axis=0)
    whole = batch.only((names[:, None] == complete[None]).all(-1).any(-1) & (adapted <= inner_steps))
    names = np.stack([whole["env"], whole["task"]], axis=1)
    tasks, task = np.unique(names, axis=0, return_inverse=True)
    # numpy 2.0, unlike other versions, returns the inverse as a column.
    task = task.reshape(-1)
    flat = laid_out(whole, task * phases + whole["adapted"], len(tasks) * phases)
    columns = {name: column.reshape(len(tasks), phases, *column.shape[1:]) for name, column in flat.items()}
    oldest = np.full(len(tasks), np.iinfo(np.int64).max)
    np.minimum.at(oldest, task, whole.columns["version"])
    return TaskBatch({**columns, "version": oldest}, {"carried": whole.segments["carried"]}, whole.rows)
