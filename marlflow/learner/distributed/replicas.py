"""Data-parallel learning on the rollout workers: rows stay on their worker, and gradients are all-reduced.

Wijmans et al., "DD-PPO: Learning near-perfect PointGoal navigators from 2.5 billion frames", 2020,
https://arxiv.org/abs/1911.00357
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from marlflow.base.arrays import Array
from marlflow.base.limits import Limit
from marlflow.base.serialization import Tree
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.learner.distributed.collective import Collective
from marlflow.learner.gradient_exchange import AgreedLimit
from marlflow.learner.minibatches import ShardDivision
from marlflow.learner.update_job import BatchSummary, UpdateJob, UpdateRequest, UpdateResult, merge_steps

if TYPE_CHECKING:
    from marlflow.learner.learner import TorchLearner


@dataclass(frozen=True, slots=True)
class ShardedBatch(EstimatedBatch):
    """The rows of several shards, concatenated; `shards` has the agent steps of each."""

    shards: tuple[int, ...] = ()


def sharded(batches: Sequence[Batch]) -> ShardedBatch:
    """Concatenate batches, one shard each."""
    # Empty batches are left out, because they may lack columns that the others have.
    whole = Batch.concat([batch for batch in batches if batch.rows] or batches[:1])
    return ShardedBatch(whole.columns, whole.segments, tuple(batch.rows for batch in batches))


def shards_of(batch: ShardedBatch) -> list[Batch]:
    """Return the batches of which `sharded` made a batch that has the same rows."""
    begins = np.cumsum(batch.segments["length"]) - batch.segments["length"]
    owner = np.searchsorted(np.cumsum(batch.shards), begins, side="right")
    whole = EstimatedBatch(batch.columns, batch.segments)
    return [whole.only(owner == number) for number in range(len(batch.shards))]


def no_rows() -> Batch:
    """Return an empty shard, for a worker without rows in a collective update."""
    none, numbers, no = np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, bool)
    columns: dict[str, Array] = {
        "obs": none,
        "action": none,
        "reward": np.zeros(0),
        "behavior_logp": none,
        "version": numbers,
    }
    segments: dict[str, Array] = {
        "length": numbers,
        "terminated": no,
        "truncated": no,
        "bootstrap_obs": none,
        "carried": no,
    }
    return Batch(columns, segments)


class ReplicaExchange:
    """Gradient exchange by all-reduce among replicas of a learner, each with its own shard of the rows (DD-PPO).

    Every method of the learners is collective: call it on all replicas. All take the same steps, and return the same
    reports.
    """

    is_alone = False

    def __init__(self, collective: Collective, learner: TorchLearner) -> None:
        self._collective = collective
        self._device = learner.device
        self._limit = AgreedLimit(collective.sum, collective.world_size)

    def leaving_on_error(self) -> AbstractContextManager[None]:
        return self._collective.leaving_on_error()

    def job(self, request: UpdateRequest) -> UpdateJob:
        rank, size, local = self._collective.rank, self._collective.world_size, BatchSummary.of(request)
        # One all-reduce for all numbers; each rank has its own element for its row count, so the sum there is this
        # count.
        counts = torch.zeros(size + 4, dtype=torch.float64)
        counts[rank] = local.rows
        if local.rows:
            counts[-4] = local.mean_version * local.rows
        totals = (local.rows_carried, local.stale_rows_dropped, local.rows_bootstrapped_at_death)
        counts[-3:] = torch.tensor(totals, dtype=torch.float64)
        self._collective.all_reduce(counts)
        *rows, versions, carried, dropped, at_death = counts.tolist()
        mean = versions / sum(rows) if any(rows) else math.nan
        summary = BatchSummary(int(sum(rows)), mean, int(carried), int(dropped), None, int(at_death))
        return _shard_job(request, [int(count) for count in rows], range(rank, rank + 1), summary)

    def ends(self, limit: Limit) -> bool:
        return self._limit.has_passed(limit)

    def all_reduce(self, gradient: Tensor, fraction: float) -> None:
        if fraction:
            gradient.mul_(fraction)
        self._collective.all_reduce(gradient)

    def sum_over_shards(self, numbers: list[float]) -> list[float]:
        return self._collective.sum(numbers)

    def result(self, job: UpdateJob, local: UpdateResult) -> UpdateResult:
        tree = {"names": list(local.names), "steps": np.array(local.steps)}
        if not self._collective.is_leader:
            self._collective.send_to_leader(tree)
            merged: Any = self._collective.receive()
            return local._replace(names=merged["names"], steps=merged["steps"].tolist())
        reports: list[Any] = [tree, *self._collective.gather()]
        # A replica without rows has no terms, so the longest list of names is complete.
        names = max((report["names"] for report in reports), key=len)
        by_rank = [report["steps"].tolist() for report in reports]
        steps = merge_steps(by_rank, job.sizes(local.minibatches_left))
        self._collective.broadcast({"names": names, "steps": np.array(steps)})
        return local._replace(names=names, steps=steps)

    def call_followers(self, method: str, *arguments: Tree) -> None:
        pass  # the caller calls the method on all replicas

    def meet(self) -> None:
        if not self._collective.is_connected:
            self._collective.meet(self._device)

    def serve(self) -> bool:
        self.meet()
        return False

    def disband(self) -> None:
        self._collective.leave()


class AllShardsExchange:
    """Gradient exchange of a single learner that computes the same on a ShardedBatch as replicas on its shards."""

    is_alone = True

    def leaving_on_error(self) -> AbstractContextManager[None]:
        return nullcontext()

    def job(self, request: UpdateRequest) -> UpdateJob:
        batch = request.batch
        # Any other batch counts as one shard.
        rows = batch.shards if isinstance(batch, ShardedBatch) else (batch.rows,)
        return _shard_job(request, rows, range(len(rows)), BatchSummary.of(request)._replace(row_ids=None))

    def ends(self, limit: Limit) -> bool:
        return limit.has_passed()

    def all_reduce(self, gradient: Tensor, fraction: float) -> None:
        pass

    def sum_over_shards(self, numbers: list[float]) -> list[float]:
        return numbers

    def result(self, job: UpdateJob, local: UpdateResult) -> UpdateResult:
        # Without priorities, since replicas do not collect them.
        return local._replace(priorities=(), order=None)

    def call_followers(self, method: str, *arguments: Tree) -> None:
        pass


def _shard_job(request: UpdateRequest, rows: Sequence[int], local: range, summary: BatchSummary) -> UpdateJob:
    num_minibatches = 1 if request.minibatch is None else max(1, sum(rows) // request.minibatch)
    division = ShardDivision(rows, local, num_minibatches)
    epochs = request.epochs if sum(rows) else 0
    columns = request.batch.columns_for_losses()
    return UpdateJob(columns, division, epochs, request.updates_before, summary, request.policy, request.groups)
