"""A learner of which every rollout worker has a replica: rows stay where they were made, and gradients are added up.

Wijmans et al., "DD-PPO: Learning near-perfect PointGoal navigators from 2.5 billion frames", 2020,
https://arxiv.org/abs/1911.00357
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marlflow.base.items import Update
from marlflow.base.kept import Tree
from marlflow.base.train_batch import TrainBatch
from marlflow.learn.collective import Collective
from marlflow.learn.groups import OptimizerGroup
from marlflow.learn.learner import TorchLearner
from marlflow.learn.loss import LossTerms
from marlflow.learn.shards import Division, ShardedBatch
from marlflow.learn.shares import steps_of_all
from marlflow.learn.steps import StepLog, means


@dataclass(frozen=True, slots=True)
class _Seen:
    """What all replicas together have: the agent steps of each, their mean version, rows carried and rows dropped."""

    rows: tuple[int, ...]
    version_mean: float
    carried: int
    dropped: int


class ReplicatedLearner(TorchLearner):
    """One of several replicas in processes of their own, which have the same parameters, and each a shard of the rows.

    Whatever one is asked, all have to be asked. Each takes as many rows of its shard into a minibatch as is its share;
    all add up their gradients, and take the same step. What is reported is of all rows, and the same for all.

    address = first.lead(world_size=2, host="10.0.0.1"), first.meet(); other.follow(address, rank=1, world_size=2)

    One that is alone stands for all of them: it is given a ShardedBatch, and learns the same up to rounding.
    """

    _share = 1.0
    """How much of the present minibatch is here."""

    def update(self, batch: TrainBatch, epochs: int = 1, minibatch_agent_steps: int | None = None) -> Update:
        """As TorchLearner's; there are floor(rows of all shards / minibatch_agent_steps) minibatches, at least one."""
        group = self._group
        if group is None:
            return self._reported(self._learned(self._seen_here(batch), batch, epochs, minibatch_agent_steps))
        with group.staying():
            seen = self._seen_by_all(group, batch)
            return self._reported(self._learned(seen, batch, epochs, minibatch_agent_steps))

    def meet(self) -> None:
        """Waits for all others; raises ActorLost if they stay away."""
        if self._group is not None and not self._group.met:
            self._group.meet(self.device)

    def follow(self, address: str, rank: int, world_size: int) -> None:
        """Takes a seat in the group that is led at `address`, and waits for all others as `meet` does."""
        self._group = Collective(self.name, address, rank, world_size)
        self.meet()

    def disband(self) -> None:
        """Leaves the others, who notice; it is alone again."""
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _tell(self, command: Tree) -> None:
        """Nobody has to be told: all are asked the same."""

    def _seen_here(self, batch: TrainBatch) -> _Seen:
        rows = batch.shards if isinstance(batch, ShardedBatch) else (batch.rows,)
        return _Seen(rows, batch.mean_version(), batch.rows_carried(), self.stale_rows_dropped)

    def _seen_by_all(self, group: Collective, batch: TrainBatch) -> _Seen:
        figures = torch.zeros(group.world_size + 3, dtype=torch.float64)
        figures[group.rank] = batch.rows
        if batch.rows:
            figures[-3] = batch.mean_version() * batch.rows
        figures[-2], figures[-1] = batch.rows_carried(), self.stale_rows_dropped
        group.add_up(figures)
        *rows, versions, carried, dropped = figures.tolist()
        mean = versions / sum(rows) if any(rows) else math.nan
        return _Seen(tuple(map(int, rows)), mean, int(carried), int(dropped))

    def _learned(self, seen: _Seen, batch: TrainBatch, epochs: int, minibatch: int | None) -> Update:
        rows, group = sum(seen.rows), self._group
        own = range(len(seen.rows)) if group is None else range(group.rank, group.rank + 1)
        division = Division(seen.rows, own, 1 if minibatch is None else max(1, rows // minibatch))
        epochs = epochs if rows else 0
        log = self._stepped(batch, division, epochs)
        found = means(log.names, log.steps()) if group is None else self._means_of_all(group, log, division, epochs)
        loss, taken, skipped = found
        self.stale_rows_dropped = seen.dropped
        return Update(
            policy="",
            rows=round(rows * epochs * taken / (taken + skipped)) if skipped else rows * epochs,
            updates=taken,
            version=0,
            loss=loss,
            updates_skipped=skipped,
            staleness_mean=seen.version_mean,
            rows_carried=seen.carried,
        )

    def _stepped(self, batch: TrainBatch, division: Division, epochs: int) -> StepLog:
        """Every step of all epochs; what the losses found for the rows that are here."""
        tensors = {name: self._tensor(column) for name, column in batch.columns_for_losses().items()}
        sizes, log = division.sizes(), StepLog()
        here = [sum(part[shard] for shard in division.own) for part in sizes]
        for seed in [self._seed() for _ in range(epochs)]:
            order = self._tensor(division.order(seed).numpy())
            views = [column.index_select(0, order).split(here) for column in tensors.values()]
            for rows, of_all, minibatch in zip(here, sizes, zip(*views, strict=True), strict=True):
                self._share = rows / sum(of_all)
                self._step(dict(zip(tensors, minibatch, strict=True)), log)
        return log

    def _seed(self) -> int:
        """One that all replicas draw, whatever rows they have."""
        return int(torch.randint(2**62, (), generator=self._generator))

    def _means_of_all(
        self, group: Collective, log: StepLog, division: Division, epochs: int
    ) -> tuple[dict[str, float], int, int]:
        """As `means`, over the rows of all."""
        own = {"names": list(log.names), "steps": log.steps()}
        if not group.leads:
            group.report(own)
            told: Any = group.receive()
            return dict(told["loss"]), told["taken"], told["skipped"]
        reports: list[Any] = [own, *group.reports()]
        names = max((report["names"] for report in reports), key=len)
        steps = steps_of_all([report["steps"] for report in reports], division.sizes() * epochs)
        loss, taken, skipped = means(names, steps)
        group.send({"loss": loss, "taken": taken, "skipped": skipped})
        return loss, taken, skipped

    def _gradient_of_group(self, minibatch: Mapping[str, Tensor], part: OptimizerGroup) -> LossTerms | None:
        """The gradient of all rows; what the loss found for those that are here, None if there are none."""
        assert self._group is not None
        found = None
        if len(next(iter(minibatch.values()))):
            found = self._gradient(minibatch, part)
            part.gradient.mul_(self._share)
        self._group.add_up(part.gradient)
        return found
