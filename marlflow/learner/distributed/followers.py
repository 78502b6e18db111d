"""The exchange of a leader and its followers: all have all rows of a batch, and each computes on a share of them.

The leader is used as if it were alone, and what it learns is the same up to rounding. It tells its followers whatever
is asked of it; they do the same and nothing else.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from marlflow.base.errors import ActorLost
from marlflow.base.items import Gradients, Update
from marlflow.base.serialization import Tree
from marlflow.learner.distributed.collective import Collective
from marlflow.learner.gradient_exchange import equal_job
from marlflow.learner.minibatches import EqualDivision
from marlflow.learner.update_job import (
    UpdateJob,
    UpdateRequest,
    UpdateResult,
    priorities_of_all,
    steps_of_all,
)
from marlflow.learner.update_loop import UpdateLoop


class LedLearner(Protocol):
    """What a leader tells a follower to do with its learner, and what a follower is given first."""

    loop: UpdateLoop
    device: torch.device

    def apply(self, gradients: Gradients) -> Update:
        """One optimizer step."""
        ...

    def sync_target(self, tau: float) -> None:
        """Renews the target."""
        ...

    def set_schedule(self, values: dict[str, float]) -> None:
        """Takes the present values of schedules."""
        ...

    def state(self) -> Tree:
        """What a follower begins with."""
        ...

    def load_state(self, state: Tree) -> None:
        """Begins with the leader's state."""
        ...


class LeaderAndFollowers:
    """The exchange of one process of the group; that of rank 0 leads."""

    def __init__(self, collective: Collective, learner: LedLearner) -> None:
        self._collective, self._learner = collective, learner

    def together(self) -> AbstractContextManager[None]:
        """Leaves the group if what is inside raises."""
        return self._collective.staying()

    def job(self, request: UpdateRequest) -> UpdateJob:
        """The leader's job; the followers are sent the same rows."""
        job = equal_job(request, 0, self._collective.world_size)
        self.tell("learn", job.columns, request.batch.count, len(job.division.sizes()), job.epochs, job.updates_before)
        return job

    def add_up(self, gradient: Tensor, fraction: float) -> None:
        """The mean of all processes' gradients, weighted by their rows."""
        if fraction:
            gradient.mul_(fraction)
        self._collective.add_up(gradient)

    def result(self, job: UpdateJob, own: UpdateResult) -> UpdateResult:
        """The terms and priorities that the leader alone would have found."""
        reports = self._collective.reports()
        sizes = job.division.sizes()
        steps = steps_of_all([own.steps, *(report["steps"] for report in reports)], [*sizes] * job.epochs)
        if not own.priorities:
            return own._replace(steps=steps)
        device = self._learner.device
        others = [torch.from_numpy(report["priorities"]).to(device) for report in reports]
        return own._replace(steps=steps, priorities=priorities_of_all([torch.cat([*own.priorities]), *others], sizes))

    def tell(self, method: str, *arguments: Tree) -> None:
        """Sends the call to all followers, once they are there; a follower tells nobody."""
        if self._collective.leads:
            self.meet()
            self._collective.send({"method": method, "arguments": list(arguments)})

    def meet(self) -> None:
        """Waits for all followers, and sends them the leader's state."""
        if self._collective.leads and not self._collective.met:
            self._collective.meet(self._learner.device)
            self._collective.send({"method": "load_state", "arguments": [self._learner.state()]})

    def serve(self) -> bool:
        """Does what the leader does, until it disbands the group; raises ActorLost if a process is lost."""
        self._collective.meet(self._learner.device)
        with self._collective.staying():
            while (command := self._collective.receive()) is not None:
                self._obey(command["method"], command["arguments"])
        self._collective.leave()
        return True

    def disband(self) -> None:
        """Leaves the group; if the leader does, its followers stop serving."""
        if self._collective.leads and self._collective.met:
            with suppress(ActorLost):  # whoever is lost cannot be told
                self._collective.send(None)
        self._collective.leave()

    def _obey(self, method: str, arguments: Tree) -> None:
        match method, arguments:
            case "learn", (columns, count, number, epochs, updates_before):
                division = EqualDivision(count, number, self._collective.rank, self._collective.world_size)
                self._learn(UpdateJob(columns, division, epochs, updates_before))
            case "apply", (flat, rows):
                self._learner.apply(Gradients(flat, rows))
            case "sync_target", (tau,):
                self._learner.sync_target(tau)
            case "set_schedule", (values,):
                self._learner.set_schedule(values)
            case "load_state", (state,):
                self._learner.load_state(state)

    def _learn(self, job: UpdateJob) -> None:
        own = self._learner.loop.run(job, self)
        priorities = torch.cat([*own.priorities]).cpu().numpy() if own.priorities else np.zeros(0, np.float32)
        self._collective.report({"steps": own.steps, "priorities": priorities})
