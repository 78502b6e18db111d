"""One update, from what a process of a learner goes through to what comes out of all its optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from marlflow.base.batch import Array
from marlflow.base.train_batch import TrainBatch
from marlflow.learner.loss import Terms
from marlflow.learner.minibatches import Division


class UpdateRequest(NamedTuple):
    """What a learner is asked: each row of `batch` once per epoch, in minibatches of at least `minibatch` agent steps.

    `minibatch` None: all at once. `updates_before` and `stale_rows_dropped` are the learner's counts.
    """

    batch: TrainBatch
    epochs: int
    minibatch: int | None
    updates_before: int
    stale_rows_dropped: int


class BatchSummary(NamedTuple):
    """What is reported of the rows of an update, of all processes that learn together.

    `stale_rows_dropped`: since the update before. `row_ids` go back to a replay.
    """

    rows: int = 0
    mean_version: float = math.nan
    rows_carried: int = 0
    stale_rows_dropped: int = 0
    row_ids: Array | None = None

    @staticmethod
    def of(request: UpdateRequest) -> BatchSummary:
        """The summary of the batch of a request."""
        batch, dropped = request.batch, request.stale_rows_dropped
        return BatchSummary(batch.rows, batch.mean_version(), batch.rows_carried(), dropped, batch.row_ids())


class UpdateJob(NamedTuple):
    """The items that a process learns from: `columns`, [count, ...] each, `epochs` times, divided by `division`.

    `updates_before` is the learner's number of optimizer steps so far.
    """

    columns: Mapping[str, Array]
    division: Division
    epochs: int
    updates_before: int = 0
    summary: BatchSummary = BatchSummary()

    @property
    def items(self) -> int:
        """Number of items that are here."""
        return len(next(iter(self.columns.values())))


class UpdateResult(NamedTuple):
    """The terms of each step, by `names`; and of the last epoch each minibatch's priorities, and the order.

    `priorities` is empty for a loss that has none; `order` [N] is None where the items were not shuffled.
    """

    names: Sequence[str]
    steps: Sequence[Sequence[float]]
    priorities: Sequence[Tensor] = ()
    order: Tensor | None = None

    def priorities_by_row(self) -> Tensor | None:
        """Priorities [N] in the order of the items; None if there are none."""
        if not self.priorities:
            return None
        shuffled = torch.cat(list(self.priorities))
        return shuffled if self.order is None else torch.empty_like(shuffled).index_copy_(0, self.order, shuffled)

    def means(self) -> tuple[dict[str, float], int, int]:
        """The mean of each term over the steps with a finite gradient, their number, and the number of others.

        A term is left out of the mean where a step does not have it.
        """
        finite = [step for step in self.steps if math.isfinite(step[-1])]
        columns = [[term for term in column if not math.isnan(term)] for column in zip(*finite, strict=True)]
        found = {name: sum(column) / len(column) for name, column in zip(self.names, columns, strict=False) if column}
        return found, len(finite), len(self.steps) - len(finite)


class StepLog:
    """The terms of each step and its gradient's norm, left on their device until all are fetched at once."""

    def __init__(self) -> None:
        self._names: list[tuple[str, ...]] = []
        self._scalars: list[Tensor | float] = []

    def add(self, terms: Terms, grad_norm: Tensor | float) -> None:
        """Adds a step; where a loss group learns at every other minibatch, not every step has every term."""
        self._names.append(tuple(terms))
        self._scalars += terms.values()
        self._scalars.append(grad_norm)

    @property
    def names(self) -> tuple[str, ...]:
        """All terms, in order, and last the norm."""
        return (*dict.fromkeys(name for names in dict.fromkeys(self._names) for name in names), "grad_norm")

    def steps(self) -> list[list[float]]:
        """Each step's terms, then its norm, fetched from the device all at once; NaN where a step has no such term."""
        on_device = [scalar for scalar in self._scalars if isinstance(scalar, Tensor)]
        fetched = iter(torch.stack(on_device).tolist() if on_device else ())
        scalars = iter([next(fetched) if isinstance(scalar, Tensor) else scalar for scalar in self._scalars])
        found = [{name: next(scalars) for name in (*names, "grad_norm")} for names in self._names]
        names = self.names
        return [[step.get(name, math.nan) for name in names] for step in found]


def steps_of_all(
    steps_by_rank: Sequence[Sequence[Sequence[float]]], sizes: Sequence[Sequence[int]]
) -> list[list[float]]:
    """The numbers that each step would have had with all rows of its minibatch in one place.

    `steps_by_rank` has each learner's own, without the steps of which it had no rows; `sizes` [steps][learners].
    """
    own, found = [iter(steps) for steps in steps_by_rank], []
    for rows in sizes:
        present = [(count / sum(rows), next(own[rank])) for rank, count in enumerate(rows) if count]
        columns = zip(*(step for _, step in present), strict=True)
        weights = [weight for weight, _ in present]
        found.append([sum(w * term for w, term in zip(weights, column, strict=True)) for column in columns])
    return found


def priorities_of_all(priorities_by_rank: Sequence[Tensor], sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The priorities of each minibatch's rows, in its order; `sizes` [minibatches][learners]."""
    counts = [[rows[rank] for rows in sizes] for rank in range(len(priorities_by_rank))]
    split = [found.split(rows) for found, rows in zip(priorities_by_rank, counts, strict=True)]
    return [torch.cat(pieces) for pieces in zip(*split, strict=True)]
