"""Reports of updates and gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping

from marlflow.base.arrays import Array
from marlflow.batches.items import Gradients, Update
from marlflow.batches.train_batch import TrainBatch
from marlflow.learner.update_job import UpdateJob, UpdateResult


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
