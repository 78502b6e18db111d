"""The reports of updates and of gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from marlflow.base.batch import Array
from marlflow.base.items import Gradients, Update
from marlflow.base.train_batch import TrainBatch


def report(
    batch: TrainBatch,
    epochs: int,
    found: tuple[dict[str, float], int, int],
    priorities: Tensor | None,
) -> Update:
    """What came of `epochs` over `batch`: the mean terms, the steps taken and those skipped.

    `staleness_mean` is for now the mean version of the rows, NaN if there are none.
    """
    loss, taken, skipped = found
    return Update(
        policy="",
        rows=round(batch.rows * epochs * taken / (taken + skipped)) if skipped else batch.rows * epochs,
        updates=taken,
        version=0,
        loss=loss,
        updates_skipped=skipped,
        staleness_mean=batch.mean_version(),
        rows_carried=batch.rows_carried(),
        priorities=None if priorities is None or skipped else priorities.cpu().numpy(),
        row_ids=batch.row_ids(),
    )


def gradients_of(batch: TrainBatch, flat: Array, terms: Mapping[str, float]) -> Gradients:
    """A gradient with what will have to be reported of the rows that it comes from."""
    own = {name: term for name, term in terms.items() if name != "grad_norm"}
    return Gradients(flat, batch.rows, own, batch.mean_version(), batch.rows_carried())


def applied(gradients: Gradients, norm: float | None) -> Update:
    """What came of one step by `gradients` of this norm; None: there was no step. `staleness_mean` as in `report`."""
    taken = norm is not None and math.isfinite(norm)
    return Update(
        policy="",
        rows=gradients.rows if taken else 0,
        updates=int(taken),
        version=0,
        loss={**gradients.loss, "grad_norm": norm} if norm is not None and taken else {},
        updates_skipped=int(norm is not None and not taken),
        staleness_mean=gradients.version_mean,
        rows_carried=gradients.rows_carried,
    )
