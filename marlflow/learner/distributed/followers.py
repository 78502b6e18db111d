"""Data-parallel learning with a leader and followers, as in DDP.

The leader forwards calls to its followers. Its results equal those of a single process up to rounding.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from marlflow.base.errors import ActorLost
from marlflow.base.limits import Limit
from marlflow.base.serialization import Tree
from marlflow.batches.items import Gradients
from marlflow.learner.distributed.collective import Collective
from marlflow.learner.gradient_exchange import AgreedLimit, equal_job
from marlflow.learner.minibatches import EqualDivision
from marlflow.learner.update_job import UpdateJob, UpdateRequest, UpdateResult, merge_priorities, merge_steps

if TYPE_CHECKING:
    from marlflow.learner.learner import TorchLearner


class LeaderAndFollowers:
    """Gradient exchange by all-reduce; each process computes on a share of every minibatch, and rank 0 leads."""

    is_alone = False

    def __init__(self, collective: Collective, learner: TorchLearner) -> None:
        self._collective, self._learner = collective, learner
        self._limit = AgreedLimit(collective.sum, collective.world_size)
        # The leader's parameters as the last update left them, which followers have, too.
        self._shared: Tensor | None = None

    def leaving_on_error(self) -> AbstractContextManager[None]:
        return self._collective.leaving_on_error()

    def job(self, request: UpdateRequest) -> UpdateJob:
        vector = self._learner.parameters.flat.vector
        # By their bits, as NaN is not equal to itself.
        if self._shared is not None and not torch.equal(*(one.view(torch.int32) for one in (self._shared, vector))):
            # A stage or a part has changed parameters, such as a running statistic.
            self.call_followers("load_state", self._learner.state())
        job = equal_job(request, 0, self._collective.world_size)
        # Followers get the whole batch: each draws the same order, and splits off its own share.
        steps = [len(job.division.sizes()), job.epochs, job.updates_before]
        groups = None if job.groups is None else list(job.groups)
        self.call_followers("learn", job.columns, request.batch.count, *steps, job.policy, groups, job.count_varies)
        return job

    def ends(self, limit: Limit) -> bool:
        return self._limit.has_passed(limit)

    def all_reduce(self, gradient: Tensor, fraction: float) -> None:
        # Gradients of means over shares, weighted by the shares' rows, sum to the gradient of the mean.
        if fraction:
            gradient.mul_(fraction)
        self._collective.all_reduce(gradient)

    def sum_over_shards(self, numbers: list[float]) -> list[float]:
        return numbers  # the leader has all rows

    def result(self, job: UpdateJob, local: UpdateResult) -> UpdateResult:
        self._shared = self._learner.parameters.flat.vector.clone()
        reports = self._collective.gather()
        steps = merge_steps([local.steps, *(report["steps"] for report in reports)], job.sizes(local.minibatches_left))
        if not local.priorities:
            return local._replace(steps=steps)
        device = self._learner.device
        others = [torch.from_numpy(report["priorities"]).to(device) for report in reports]
        return local._replace(
            steps=steps, priorities=merge_priorities([torch.cat([*local.priorities]), *others], job.division.sizes())
        )

    def call_followers(self, method: str, *arguments: Tree) -> None:
        # A follower runs these methods because the leader called them, and must not forward them again.
        if self._collective.is_leader:
            self.meet()
            self._collective.broadcast({"method": method, "arguments": list(arguments)})

    def meet(self) -> None:
        if self._collective.is_leader and not self._collective.is_connected:
            self._collective.meet(self._learner.device)
            # Followers start from the leader's parameters, whatever they were built with.
            self._collective.broadcast({"method": "load_state", "arguments": [self._learner.state()]})
            self._shared = self._learner.parameters.flat.vector.clone()

    def serve(self) -> bool:
        self._collective.meet(self._learner.device)
        with self._collective.leaving_on_error():
            while (command := self._collective.receive()) is not None:
                self._run_call(command["method"], command["arguments"])
        self._collective.leave()
        return True

    def disband(self) -> None:
        if self._collective.is_leader and self._collective.is_connected:
            # None ends the followers' serve(); followers that were lost cannot receive it.
            with suppress(ActorLost):
                self._collective.broadcast(None)
        self._collective.leave()

    def _run_call(self, method: str, arguments: Tree) -> None:
        match method, arguments:
            case "learn", (columns, count, num_minibatches, epochs, updates_before, policy, groups, count_varies):
                division = EqualDivision(count, num_minibatches, self._collective.rank, self._collective.world_size)
                only = None if groups is None else tuple(groups)
                of_batch = {"policy": policy, "groups": only, "count_varies": count_varies}
                self._learn(UpdateJob(columns, division, epochs, updates_before, **of_batch))
            case "apply", (flat, rows):
                self._learner.apply(Gradients(flat, rows))
            case "sync_target", (tau,):
                self._learner.sync_target(tau)
            case "set_schedule", (values,):
                self._learner.set_schedule(values)
            case "load_state", (state,):
                self._learner.load_state(state)

    def _learn(self, job: UpdateJob) -> None:
        result = self._learner.loop.run(job, self)
        priorities = torch.cat([*result.priorities]).cpu().numpy() if result.priorities else np.zeros(0, np.float32)
        self._collective.send_to_leader({"steps": result.steps, "priorities": priorities})
