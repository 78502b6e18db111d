"""The protocol by which data-parallel learners share an update, and its single-process implementation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from marlflow.base.serialization import Tree
from marlflow.learner.minibatches import EqualDivision
from marlflow.learner.update_job import BatchSummary, UpdateJob, UpdateRequest, UpdateResult
from marlflow.learner.update_limit import UpdateLimit


class GradientExchange(Protocol):
    """Divides an update among data-parallel processes and all-reduces their gradients.

    with exchange.leaving_on_error():
        job = exchange.job(request)
        # run() calls ends() before each minibatch, and all_reduce() for each gradient.
        result = exchange.result(job, loop.run(job, exchange))
    """

    is_alone: bool
    """Whether this process has all rows of an update, and needs no other process's gradients."""

    def leaving_on_error(self) -> AbstractContextManager[None]:
        """Leave the group if the block raises."""
        ...

    def job(self, request: UpdateRequest) -> UpdateJob:
        """Return this process's rows and their division into minibatches."""
        ...

    def ends(self, limit: UpdateLimit) -> bool:
        """Return whether the update ends before the next minibatch, by the `limit` of any process, in all alike."""
        ...

    def all_reduce(self, gradient: Tensor, fraction: float) -> None:
        """Replace `gradient`, of `fraction` of a minibatch, by that of the whole minibatch."""
        ...

    def result(self, job: UpdateJob, local: UpdateResult) -> UpdateResult:
        """Merge the results of all processes; `local` is this one's."""
        ...

    def call_followers(self, method: str, *arguments: Tree) -> None:
        """Call `method` on all followers' learners, if this process is the leader."""
        ...


class ProcessGroup(GradientExchange, Protocol):
    """The gradient exchange of a process in a group."""

    def meet(self) -> None:
        """Wait until all processes have joined; raises ActorLost after a timeout."""
        ...

    def serve(self) -> bool:
        """Join, and follow a leader until the group ends; return whether it has ended."""
        ...

    def disband(self) -> None:
        """Leave the group; as its leader, end it."""
        ...


class SingleProcess:
    """The gradient exchange of a learner in one process: no communication."""

    is_alone = True

    def leaving_on_error(self) -> AbstractContextManager[None]:
        return nullcontext()

    def job(self, request: UpdateRequest) -> UpdateJob:
        return equal_job(request)

    def ends(self, limit: UpdateLimit) -> bool:
        return limit.has_passed()

    def all_reduce(self, gradient: Tensor, fraction: float) -> None:
        pass

    def result(self, job: UpdateJob, local: UpdateResult) -> UpdateResult:
        return local

    def call_followers(self, method: str, *arguments: Tree) -> None:
        pass


def equal_job(request: UpdateRequest, rank: int = 0, world_size: int = 1) -> UpdateJob:
    """Return the job of one of `world_size` processes that each hold all rows."""
    batch, least = request.batch, request.minibatch
    # Sequences are not split, so there cannot be more minibatches than sequences.
    num_minibatches = 1 if least is None else max(1, min(batch.count, batch.rows // least))
    division = EqualDivision(batch.count, num_minibatches, rank, world_size)
    epochs = request.epochs if batch.rows else 0
    summary = BatchSummary.of(request)
    of_batch = request.policy, request.groups, batch.count_varies
    return UpdateJob(batch.columns_for_losses(), division, epochs, request.updates_before, summary, *of_batch)
