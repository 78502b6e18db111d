"""How a learner shares its updates with others that have the same parameters; and the one that shares with nobody."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from marlflow.base.serialization import Tree
from marlflow.learner.minibatches import EqualDivision
from marlflow.learner.update_job import BatchSummary, UpdateJob, UpdateRequest, UpdateResult


class GradientExchange(Protocol):
    """Divides an update among processes with the same parameters, and adds up their gradients.

    with exchange.together():
        job = exchange.job(request)
        result = exchange.result(job, loop.run(job, exchange))  # run() calls add_up() for each gradient
    """

    def together(self) -> AbstractContextManager[None]:
        """Leaves the group if what is inside raises, so that no other process waits for this one."""
        ...

    def job(self, request: UpdateRequest) -> UpdateJob:
        """What this process learns from, and how it is divided."""
        ...

    def add_up(self, gradient: Tensor, fraction: float) -> None:
        """Replaces `gradient`, of `fraction` of a minibatch, by the gradient of the whole minibatch."""
        ...

    def result(self, job: UpdateJob, own: UpdateResult) -> UpdateResult:
        """The result of all processes, of which this one's is `own`."""
        ...

    def tell(self, method: str, *arguments: Tree) -> None:
        """Has the other processes call `method` of their learners too, where this one leads them."""
        ...


class ProcessGroup(GradientExchange, Protocol):
    """The exchange of a process that is in a group of several."""

    def meet(self) -> None:
        """Waits until all processes are there; raises ActorLost if they stay away."""
        ...

    def serve(self) -> bool:
        """Takes part as a process that does not lead: as long as it is led, or if nobody leads until all are there.

        Returns whether the group has ended.
        """
        ...

    def disband(self) -> None:
        """Leaves the group."""
        ...


class SingleProcess:
    """The exchange of a learner that shares with nobody."""

    def together(self) -> AbstractContextManager[None]:
        """Nobody would wait."""
        return nullcontext()

    def job(self, request: UpdateRequest) -> UpdateJob:
        """All rows are here."""
        return equal_job(request)

    def add_up(self, gradient: Tensor, fraction: float) -> None:
        """The gradient is the whole minibatch's already."""

    def result(self, job: UpdateJob, own: UpdateResult) -> UpdateResult:
        """The own result."""
        return own

    def tell(self, method: str, *arguments: Tree) -> None:
        """Nobody is there to be told."""


def equal_job(request: UpdateRequest, rank: int = 0, world_size: int = 1) -> UpdateJob:
    """The job of one of `world_size` processes that all have all rows.

    There are floor(rows / minibatch) minibatches of nearly equal size, and always at least one.
    """
    batch, least = request.batch, request.minibatch
    number = 1 if least is None else max(1, min(batch.count, batch.rows // least))
    division = EqualDivision(batch.count, number, rank, world_size)
    epochs = request.epochs if batch.rows else 0
    return UpdateJob(batch.columns_for_losses(), division, epochs, request.updates_before, BatchSummary.of(request))
