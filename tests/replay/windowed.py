"""Batches as a plan brings them to a replay: with the windows of its terms."""

from __future__ import annotations

import marlflow as mf
from marlflow.batches.items import Inserted


def windowed(batch: mf.Batch, buffer: mf.ReplayBuffer) -> mf.Batch:
    """`batch` with the windows that `buffer` expects."""
    terms = buffer.state()
    return mf.NStep(terms["n_step"], terms["discount"])(batch)


def put(buffer: mf.ReplayBuffer, batch: mf.Batch) -> Inserted:
    """Inserts `batch` with its windows."""
    return mf.Insert()(windowed(batch, buffer), buffer)
