"""Between rows and a learner: the columns that losses see, and what is reported of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import TypeAlias

import numpy as np
from torch import Tensor

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.items import Gradients, Update
from marlflow.base.sequence_transitions import SequenceTransitions
from marlflow.base.sequences import Sequences

Trained: TypeAlias = Batch | Sequences | Transitions | SequenceTransitions
"""What a learner can be given to learn from."""

_NOT_FOR_LOSSES = frozenset({"version", "t_env", "t_agent", "row_id"})


def columns_for_losses(batch: Trained) -> dict[str, Array]:
    """The columns of a batch, [N, ...] each, without those that only say where rows come from; no float64."""
    if isinstance(batch, Batch | Sequences):
        found = {name: column for name, column in batch.columns.items() if name not in _NOT_FOR_LOSSES}
        if isinstance(batch, Sequences):
            found |= {"present": batch.present, "memory": batch.memory, "weight": batch.weight}
    else:
        names = (field.name for field in fields(batch) if field.name not in _NOT_FOR_LOSSES)
        found = {name: column for name in names if (column := getattr(batch, name)) is not None}
    return {name: column.astype(np.float32) if column.dtype == np.float64 else column for name, column in found.items()}


def count_of(batch: Trained) -> int:
    """How many of those that a minibatch has as a whole: rows, or sequences of them."""
    return batch.count if isinstance(batch, Sequences | SequenceTransitions) else batch.rows


def report(
    batch: Trained,
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
        staleness_mean=mean_version(batch),
        rows_carried=rows_carried(batch),
        priorities=None if priorities is None or skipped else priorities.cpu().numpy(),
        row_ids=None if isinstance(batch, Batch | Sequences) else batch.row_id,
    )


def gradients_of(batch: Trained, flat: Array, terms: Mapping[str, float]) -> Gradients:
    """A gradient with what will have to be reported of the rows that it comes from."""
    own = {name: term for name, term in terms.items() if name != "grad_norm"}
    return Gradients(flat, batch.rows, own, mean_version(batch), rows_carried(batch))


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


def mean_version(batch: Trained) -> float:
    """The mean version of the rows; NaN if there are none, or if nobody knows."""
    version = batch.columns["version"] if isinstance(batch, Batch) else batch.version
    return float(version.mean()) if version is not None and len(version) else math.nan


def rows_carried(batch: Trained) -> int:
    """How many of the rows were begun in the fragment before."""
    if isinstance(batch, Sequences):
        return int(batch.carried.sum())
    return int(batch.segments["carried"].sum()) if isinstance(batch, Batch) else 0
