"""Batches of meta-learning: advantages by linear critics for the inner steps, and rows laid out by task.

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

from marlflow.base.batch import Array, Batch, EstimatedBatch
from marlflow.learner.advantages import advantages, normalized
from marlflow.losses.advantages import reverse_linear_recurrence
from marlflow.losses.maml import fitted_values

_MOST_FEATURES = 64
_RIDGE = 1e-5
_FOR_LOSSES = ("obs", "action", "behavior_logp", "advantage", "action_mask")


@dataclass(frozen=True, slots=True)
class AdaptedBatch(EstimatedBatch):
    """A batch of one or more iterations of tasks: its segments say `task`, and how often its policy had `adapted`."""

    made_from: ClassVar[Mapping[str, str]] = {"Batch": ".then(Adapt(...), at=learner)"}


@dataclass(frozen=True, slots=True)
class TaskBatch(Batch):
    """Rows laid out by task; here a row of columns is a task, and so is what a learner counts as one.

    `columns`: `obs`, `action`, `behavior_logp`, `advantage` and `action_mask` if there is one are [T, K + 1, R, ...]:
    of each task and phase so many agent steps, the rest padding. `weight` [T, K + 1, R] is 1 by how many these are, and
    0 for padding. `version` is [T]. `agent_steps` is how many there are in all.
    """

    made_from: ClassVar[Mapping[str, str]] = {"AdaptedBatch": ".then(ByTask(...), at=learner)"}

    agent_steps: int = 0

    @property
    def rows(self) -> int:
        """Number of tasks."""
        return len(self.columns["version"])


def linear_advantages(batch: Batch, discount: float, gae_lambda: float) -> EstimatedBatch:
    """`batch` with the columns of an EstimatedBatch by linear critics, one per environment; advantages normalized each.

    Segments of one environment have to follow each other, as those of one worker do.
    """
    env_indices = batch.segments["env"]
    parts = [
        _linear_advantages(batch.only(env_indices == env_index), discount, gae_lambda)
        for env_index in dict.fromkeys(env_indices.tolist())
    ]
    whole = Batch.concat(parts or [_linear_advantages(batch, discount, gae_lambda)])
    return EstimatedBatch({**whole.columns, "obs": batch.columns["obs"]}, batch.segments)


def _linear_advantages(batch: Batch, discount: float, gae_lambda: float) -> EstimatedBatch:
    featured = _with_features(batch)
    return normalized(advantages(featured, _fitted(featured, discount), discount, gae_lambda))


def _fitted(batch: Batch, discount: float) -> _LinearCritic:
    """The critic that agrees best with the returns of `batch`, whose observations are features."""
    ends, lengths, rows = batch.ends(), batch.segments["length"], np.arange(batch.rows)
    decay = np.full(batch.rows, discount)
    decay[ends] = 0.0
    return_t = reverse_linear_recurrence(torch.from_numpy(batch.columns["reward"]), torch.from_numpy(decay))
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
        """Values of features [N, F], float32 [N]; a memory does not count."""
        del memory
        found: Array = (obs @ self.weights).astype(np.float32)
        return found


def _with_features(batch: Batch) -> Batch:
    """`batch` with what a linear critic knows in place of observations, float64 [N, F] and [S, F]."""
    ends, t_agent = batch.ends(), batch.columns["t_agent"]
    after = _features(batch.segments["bootstrap_obs"], t_agent[ends] + 1)
    obs = _features(batch.columns["obs"], t_agent)
    return Batch({**batch.columns, "obs": obs}, {**batch.segments, "bootstrap_obs": after})


def _features(obs: Array, t_agent: Array) -> Array:
    """The observation, its square, and powers of time; of large observations time alone, which cannot be overfitted."""
    seen = np.clip(obs.reshape(len(obs), math.prod(obs.shape[1:])).astype(np.float64), -10.0, 10.0)
    if seen.shape[1] > _MOST_FEATURES:
        seen = seen[:, :0]
    time = t_agent[:, None] / 100.0
    return np.concatenate([seen, seen**2, time, time**2, time**3, np.ones_like(time)], axis=1)


def laid_out(batch: Batch, group: Array, groups: int) -> dict[str, Array]:
    """What an inner step needs of the rows of each group [G, R, ...], in their order; `group` [N] says which is whose.

    `weight` is 1 by the rows of the group, and 0 for padding; a padding row has every action legal.
    """
    counts = np.bincount(group, minlength=groups)
    order = np.argsort(group, kind="stable")
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = {}
    for name in _FOR_LOSSES:
        if name in batch.columns:
            column = batch.columns[name]
            fill = np.ones if name == "action_mask" else np.zeros
            found[name] = fill((groups, int(counts.max(initial=0)), *column.shape[1:]), column.dtype)
            found[name][group, place] = column
    weight = np.zeros((groups, int(counts.max(initial=0))), np.float32)
    weight[group, place] = 1.0 / counts[group]
    return {**found, "weight": weight}


def by_task(batch: Batch, inner_steps: int) -> TaskBatch:
    """The rows of `batch` by task and phase; see ByTask."""
    phases, adapted = inner_steps + 1, batch.segments["adapted"]
    names = np.stack([batch.segments["env"], batch.segments["task"]], axis=1)
    shown = np.unique(names[adapted == inner_steps], axis=0)
    whole = batch.only((names[:, None] == shown[None]).all(-1).any(-1) & (adapted <= inner_steps))
    names = np.stack([whole["env"], whole["task"]], axis=1)
    found, task = np.unique(names, axis=0, return_inverse=True)
    task = task.reshape(-1)  # numpy 2.0 alone gives it another shape
    flat = laid_out(whole, task * phases + whole["adapted"], len(found) * phases)
    columns = {name: column.reshape(len(found), phases, *column.shape[1:]) for name, column in flat.items()}
    oldest = np.full(len(found), np.iinfo(np.int64).max)
    np.minimum.at(oldest, task, whole.columns["version"])
    return TaskBatch({**columns, "version": oldest}, {"carried": whole.segments["carried"]}, whole.rows)
