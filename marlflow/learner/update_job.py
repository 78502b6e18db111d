"""The data of one update: request, job of one process with its padded sizes, results, and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from marlflow.base.arrays import Array
from marlflow.batches.batch import TrainBatch
from marlflow.batches.items import Gradients, Update
from marlflow.learner.loss import Terms
from marlflow.learner.minibatches import Division


class UpdateRequest(NamedTuple):
    """A request to train on each row of `batch` once per epoch.

    Minibatches have at least `minibatch` agent steps; None trains on all rows at once. With `policy`, only its loss
    groups, and the groups that belong to no policy, are trained; with `groups`, only the groups of these names.
    """

    batch: TrainBatch
    epochs: int
    minibatch: int | None
    updates_before: int
    stale_rows_dropped: int
    policy: str | None = None
    groups: tuple[str, ...] | None = None


class BatchSummary(NamedTuple):
    """Statistics of the rows of an update, over all processes; `row_ids` are for a replay's priorities."""

    rows: int = 0
    mean_version: float = math.nan
    rows_carried: int = 0
    stale_rows_dropped: int = 0
    row_ids: Array | None = None
    rows_bootstrapped_at_death: int = 0

    @staticmethod
    def of(request: UpdateRequest) -> BatchSummary:
        """Summarize the batch of a request."""
        batch, dropped = request.batch, request.stale_rows_dropped
        at_death = batch.rows_bootstrapped_at_death()
        return BatchSummary(batch.rows, batch.mean_version(), batch.rows_carried(), dropped, batch.row_ids(), at_death)


class TargetUpdate(NamedTuple):
    """An update of the target network by the share `tau`, `every` optimizer steps."""

    every: int
    tau: float


class UpdateJob(NamedTuple):
    """The items on which one process trains: `columns` [count, ...], divided into minibatches by `division`.

    `count_varies` is the batch's. With `target`, the target network is updated between the minibatches.
    """

    columns: Mapping[str, Array]
    division: Division
    epochs: int
    updates_before: int = 0
    summary: BatchSummary = BatchSummary()
    policy: str | None = None
    groups: tuple[str, ...] | None = None
    count_varies: bool = False
    target: TargetUpdate | None = None

    @property
    def items(self) -> int:
        """Number of items in this process."""
        return len(next(iter(self.columns.values())))

    def sizes(self, minibatches_left: int = 0) -> list[Sequence[int]]:
        """Return the shares' sizes of each minibatch of all epochs, [minibatches][shares], without the last ones."""
        sizes = [*self.division.sizes()] * self.epochs
        return sizes[: len(sizes) - minibatches_left]


class UpdateResult(NamedTuple):
    """The loss terms `names` of each step of an update, the last being the gradient's norm.

    `priorities` (by minibatch, if the loss has any) and `order` [N] (None if not shuffled) belong to the last epoch.
    `minibatches_left` were not trained on, because a Limit had passed; there are no priorities then.
    """

    names: Sequence[str]
    steps: Sequence[Sequence[float]]
    priorities: Sequence[Tensor] = ()
    order: Tensor | None = None
    minibatches_left: int = 0

    def priorities_by_row(self) -> Tensor | None:
        """Return the priorities [N] in the items' original order; None without priorities."""
        if not self.priorities:
            return None
        shuffled = torch.cat(list(self.priorities))
        return shuffled if self.order is None else torch.empty_like(shuffled).index_copy_(0, self.order, shuffled)

    def by_minibatch(self) -> list[UpdateResult]:
        """Return the result of each minibatch as if it were one update."""
        taken = [UpdateResult(self.names, [step]) for step in self.steps]
        if self.priorities:
            taken = [one._replace(priorities=[own]) for one, own in zip(taken, self.priorities, strict=True)]
        return [*taken, *([UpdateResult(self.names, [], minibatches_left=1)] * self.minibatches_left)]

    def means(self) -> tuple[dict[str, float], int, int]:
        """Return the mean of each term over the steps taken, and the numbers of steps taken and skipped."""
        finite = [step for step in self.steps if math.isfinite(step[-1])]
        # A term is NaN for steps without it, because not every group steps on every minibatch.
        columns = [[term for term in column if not math.isnan(term)] for column in zip(*finite, strict=True)]
        # Not strict, because there are no columns if no step was finite.
        means = {name: sum(column) / len(column) for name, column in zip(self.names, columns, strict=False) if column}
        return means, len(finite), len(self.steps) - len(finite)


class StepLog:
    """Collects each step's loss terms and gradient norm on their device."""

    def __init__(self) -> None:
        self._names: list[tuple[str, ...]] = []
        self._scalars: list[Tensor | float] = []

    def add(self, terms: Terms, grad_norm: Tensor | float) -> None:
        """Add a step; steps may have different terms."""
        self._names.append(tuple(terms))
        self._scalars += terms.values()
        self._scalars.append(grad_norm)

    @property
    def names(self) -> tuple[str, ...]:
        """The terms of all steps, and last `grad_norm`."""
        return (*dict.fromkeys(name for names in dict.fromkeys(self._names) for name in names), "grad_norm")

    def steps(self) -> list[list[float]]:
        """Return each step's numbers by `names`; NaN for a term that it does not have."""
        # One transfer from the device for all scalars of the update.
        on_device = [scalar for scalar in self._scalars if isinstance(scalar, Tensor)]
        fetched = iter(torch.stack(on_device).tolist() if on_device else ())
        scalars = iter([next(fetched) if isinstance(scalar, Tensor) else scalar for scalar in self._scalars])
        names = self.names
        if len(set(self._names)) == 1:
            return [[next(scalars) for _ in names] for _ in self._names]
        steps = [{name: next(scalars) for name in (*own_names, "grad_norm")} for own_names in self._names]
        return [[step.get(name, math.nan) for name in names] for step in steps]


def merge_steps(
    steps_by_rank: Sequence[Sequence[Sequence[float]]], sizes: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Return each step's terms over all processes, as means weighted by rows; `sizes` is [steps][processes]."""
    remaining, merged = [iter(steps) for steps in steps_by_rank], []
    for rows in sizes:
        # A process has no entry for steps without rows of its own.
        shares = [(count / sum(rows), next(remaining[rank])) for rank, count in enumerate(rows) if count]
        columns = zip(*(step for _, step in shares), strict=True)
        weights = [weight for weight, _ in shares]
        merged.append([sum(w * term for w, term in zip(weights, column, strict=True)) for column in columns])
    return merged


def merge_priorities(priorities_by_rank: Sequence[Tensor], sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Concatenate the processes' priorities, by minibatch; `sizes` is [minibatches][processes]."""
    counts = [[rows[rank] for rows in sizes] for rank in range(len(priorities_by_rank))]
    split = [priorities.split(rows) for priorities, rows in zip(priorities_by_rank, counts, strict=True)]
    return [torch.cat(pieces) for pieces in zip(*split, strict=True)]


def update_report(learner: str, version: int, job: UpdateJob, result: UpdateResult) -> Update:
    """Build the report of an update; staleness is the rows' age at `version`."""
    loss, taken, skipped = result.means()
    priorities, summary = result.priorities_by_row(), job.summary
    rows, left = summary.rows * job.epochs, result.minibatches_left
    if left:
        rows -= round(rows * left / len(job.sizes()))
    return Update(
        learner=learner,
        rows=round(rows * taken / (taken + skipped)) if skipped else rows,
        updates=taken,
        version=version,
        loss=loss,
        updates_skipped=skipped,
        staleness_mean=_staleness(version, summary.mean_version),
        stale_rows_dropped=summary.stale_rows_dropped,
        rows_carried=summary.rows_carried,
        rows_bootstrapped_at_death=summary.rows_bootstrapped_at_death,
        # Priorities of a skipped step may be NaN.
        priorities=None if priorities is None or skipped else priorities.cpu().numpy(),
        row_ids=summary.row_ids,
        minibatches_left=left,
    )


def gradients_of(batch: TrainBatch, flat: Array, terms: Mapping[str, float]) -> Gradients:
    """Build the Gradients of `batch`, with the statistics of its rows."""
    at_death = batch.rows_bootstrapped_at_death()
    return Gradients(flat, batch.rows, terms, batch.mean_version(), batch.rows_carried(), at_death)


def step_report(
    learner: str, version: int, gradients: Gradients, norm: float | None, stale_rows_dropped: int
) -> Update:
    """Build the report of one step; `norm` is None if none was tried."""
    taken = norm is not None and math.isfinite(norm)
    return Update(
        learner=learner,
        rows=gradients.rows if taken else 0,
        updates=int(taken),
        version=version,
        loss={**gradients.loss, "grad_norm": norm} if norm is not None and taken else {},
        updates_skipped=int(norm is not None and not taken),
        staleness_mean=_staleness(version, gradients.version_mean),
        stale_rows_dropped=stale_rows_dropped,
        rows_carried=gradients.rows_carried,
        rows_bootstrapped_at_death=gradients.rows_bootstrapped_at_death,
    )


def _staleness(version: int, mean_version: float) -> float:
    # Without rows the mean version is NaN.
    staleness = version - mean_version
    return staleness if math.isfinite(staleness) else 0.0


def mean_gradients(gradients: Sequence[Gradients]) -> Gradients:
    """Return the mean of gradients, weighted by rows; raises ValueError without any."""
    if not gradients:
        raise ValueError("expected at least one gradient, got none")
    # A gradient of no rows has no loss terms, and no mean version.
    nonempty = [gradient for gradient in gradients if gradient.rows] or gradients[:1]
    rows = sum(gradient.rows for gradient in nonempty)
    shares = [gradient.rows / rows if rows else 1.0 for gradient in nonempty]
    weighted = list(zip(nonempty, shares, strict=True))
    flat = np.average([gradient.flat for gradient in nonempty], axis=0, weights=shares).astype(np.float32)
    loss = {name: sum(gradient.loss[name] * share for gradient, share in weighted) for name in nonempty[0].loss}
    version_mean = sum(gradient.version_mean * share for gradient, share in weighted)
    carried = sum(gradient.rows_carried for gradient in nonempty)
    at_death = sum(gradient.rows_bootstrapped_at_death for gradient in nonempty)
    return Gradients(flat, rows, loss, version_mean, carried, at_death)


def padded_sizes(job: UpdateJob, sizes: Sequence[int]) -> tuple[int, int]:
    """Return the padded number of items of a minibatch, and of the array that minibatches are taken from.

    A program is compiled for each pair of numbers, so few pairs may occur in a run. They depend on this job alone, so a
    resumed run computes the same as the run without interruption.
    """
    width = padded_size(max(sizes), job.count_varies)
    # Padding of the array costs memory, and no time.
    return width, width * _doubled(3, len(sizes)) if job.count_varies else 1 << (job.items - 1).bit_length()


def padded_size(count: int, count_varies: bool) -> int:
    """Return the padded number of items of a minibatch of `count`; few differ in a run, whatever its batches are."""
    # 3 * 2^n: the number of full sequences is often a power of two, and sequences cut short add at most half of that.
    return _doubled(12, count) if count_varies else _rounded_up(count)


def _doubled(least: int, count: int) -> int:
    """Return the first of `least`, twice `least`, and so on, that is at least `count`."""
    return least << (-(-count // least) - 1).bit_length()


def _rounded_up(count: int) -> int:
    """Return the least of the padded sizes of minibatches from `count` on, at most an eighth or 8 rows more."""
    step: int = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step
