"""The exchange of replicas on the rollout workers: rows stay where they were made, and gradients are added up.

Wijmans et al., "DD-PPO: Learning near-perfect PointGoal navigators from 2.5 billion frames", 2020,
https://arxiv.org/abs/1911.00357
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marlflow.base.serialization import Tree
from marlflow.learner.distributed.collective import Collective
from marlflow.learner.distributed.followers import LedLearner
from marlflow.learner.distributed.shards import ShardedBatch
from marlflow.learner.minibatches import ShardDivision
from marlflow.learner.update_job import BatchSummary, UpdateJob, UpdateRequest, UpdateResult, steps_of_all


class ReplicaExchange:
    """The exchange of one of several replicas, which have the same parameters, and each a shard of the rows.

    Every method of their learners is collective: call it on all replicas. Each takes the rows of its own shard that are
    in a minibatch; all add up their gradients, and take the same step. Reports are of all rows, and the same for all.
    """

    def __init__(self, collective: Collective, learner: LedLearner) -> None:
        self._collective, self._device = collective, learner.device

    def together(self) -> AbstractContextManager[None]:
        """Leaves the group if what is inside raises."""
        return self._collective.staying()

    def job(self, request: UpdateRequest) -> UpdateJob:
        """The own shard's rows, divided by the number of rows of all."""
        rank, size, own = self._collective.rank, self._collective.world_size, BatchSummary.of(request)
        figures = torch.zeros(size + 3, dtype=torch.float64)
        figures[rank] = own.rows
        if own.rows:
            figures[-3] = own.mean_version * own.rows
        figures[-2], figures[-1] = own.rows_carried, own.stale_rows_dropped
        self._collective.add_up(figures)
        *rows, versions, carried, dropped = figures.tolist()
        mean = versions / sum(rows) if any(rows) else math.nan
        summary = BatchSummary(int(sum(rows)), mean, int(carried), int(dropped))
        return _shard_job(request, [int(count) for count in rows], range(rank, rank + 1), summary)

    def add_up(self, gradient: Tensor, fraction: float) -> None:
        """The mean of all replicas' gradients, weighted by their rows."""
        if fraction:
            gradient.mul_(fraction)
        self._collective.add_up(gradient)

    def result(self, job: UpdateJob, own: UpdateResult) -> UpdateResult:
        """The terms over the rows of all; priorities of rows are not collected."""
        tree = {"names": list(own.names), "steps": np.array(own.steps)}
        if not self._collective.leads:
            self._collective.report(tree)
            told: Any = self._collective.receive()
            return UpdateResult(told["names"], told["steps"].tolist())
        reports: list[Any] = [tree, *self._collective.reports()]
        names = max((report["names"] for report in reports), key=len)
        by_rank = [report["steps"].tolist() for report in reports]
        steps = steps_of_all(by_rank, [*job.division.sizes()] * job.epochs)
        self._collective.send({"names": names, "steps": np.array(steps)})
        return UpdateResult(names, steps)

    def tell(self, method: str, *arguments: Tree) -> None:
        """The method is called on all replicas as it is."""

    def meet(self) -> None:
        """Waits for all other replicas."""
        if not self._collective.met:
            self._collective.meet(self._device)

    def serve(self) -> bool:
        """Waits for all other replicas; nobody leads."""
        self.meet()
        return False

    def disband(self) -> None:
        """Leaves the group, which the others notice."""
        self._collective.leave()


class AllShardsExchange:
    """The exchange of a learner that stands for all replicas: it is given a ShardedBatch.

    It learns what they do, up to rounding.
    """

    def together(self) -> AbstractContextManager[None]:
        """Nobody would wait."""
        return nullcontext()

    def job(self, request: UpdateRequest) -> UpdateJob:
        """All rows, divided as among replicas; a batch of another kind is one shard."""
        batch = request.batch
        rows = batch.shards if isinstance(batch, ShardedBatch) else (batch.rows,)
        return _shard_job(request, rows, range(len(rows)), BatchSummary.of(request)._replace(row_ids=None))

    def add_up(self, gradient: Tensor, fraction: float) -> None:
        """The gradient is the whole minibatch's already."""

    def result(self, job: UpdateJob, own: UpdateResult) -> UpdateResult:
        """The own result, without priorities, which replicas do not collect."""
        return UpdateResult(own.names, own.steps)

    def tell(self, method: str, *arguments: Tree) -> None:
        """Nobody is there to be told."""


def _shard_job(request: UpdateRequest, rows: Any, own: range, summary: BatchSummary) -> UpdateJob:
    number = 1 if request.minibatch is None else max(1, sum(rows) // request.minibatch)
    division = ShardDivision(rows, own, number)
    epochs = request.epochs if sum(rows) else 0
    return UpdateJob(request.batch.columns_for_losses(), division, epochs, request.updates_before, summary)
