"""The protocol by which data-parallel learners share an update, and its single-process implementation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Protocol

from torch import Tensor

from marlflow.base.limits import Limit
from marlflow.base.serialization import Tree
from marlflow.learner.minibatches import EqualDivision
from marlflow.learner.update_job import BatchSummary, UpdateJob, UpdateRequest, UpdateResult

_AGREE_EVERY_S = 0.5
_MOST_MINIBATCHES = 1000


class AgreedLimit:
    """Ends the updates of a group of processes before the same minibatch, as soon as one of them has to end.

    `sum_over_group` replaces numbers by their sums over all processes. It is called about twice a second, not at every
    minibatch: from the sums, all processes compute alike how many minibatches to take until the next call.
    """

    def __init__(self, sum_over_group: Callable[[list[float]], list[float]], world_size: int) -> None:
        self._sum, self._world_size = sum_over_group, world_size
        self._interval = self._left = 0
        self._agreed_at_s = perf_counter()

    def has_passed(self, limit: Limit) -> bool:
        """Return whether all processes end the update now; collective, called before each minibatch."""
        if self._left:
            self._left -= 1
            return False
        now_s = perf_counter()
        passed, seconds = self._sum([float(limit.has_passed()), now_s - self._agreed_at_s])
        self._agreed_at_s = now_s
        # The time that the group waited for rows counts too: it makes the interval shorter, never longer.
        per_s = (self._interval + 1) * self._world_size / max(seconds, 1e-9)
        self._interval = min(int(per_s * _AGREE_EVERY_S), 2 * self._interval + 1, _MOST_MINIBATCHES)
        # After a limit has passed, the next update checks at once, because the limit may have been moved.
        self._left = 0 if passed else self._interval
        return passed > 0


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

    def ends(self, limit: Limit) -> bool:
        """Return whether the update ends before the next minibatch, by the `limit` of any process, in all alike."""
        ...

    def all_reduce(self, gradient: Tensor, fraction: float) -> None:
        """Replace `gradient`, of `fraction` of a minibatch, by the gradient of the whole minibatch."""
        ...

    def sum_over_shards(self, numbers: list[float]) -> list[float]:
        """Return the sum of each number over all processes with rows of their own; collective."""
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

    def ends(self, limit: Limit) -> bool:
        return limit.has_passed()

    def all_reduce(self, gradient: Tensor, fraction: float) -> None:
        pass

    def sum_over_shards(self, numbers: list[float]) -> list[float]:
        return numbers

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
