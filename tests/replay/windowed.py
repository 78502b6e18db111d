"""Batches as a plan brings them to a replay: with the windows of its terms."""

from __future__ import annotations

from marlflow.base.batch import Batch
from marlflow.base.items import Inserted
from marlflow.replay import ReplayBuffer
from marlflow.stages import Insert, NStep


def windowed(batch: Batch, buffer: ReplayBuffer) -> Batch:
    """`batch` with the windows that `buffer` expects."""
    terms = buffer.state()
    return NStep(terms["n_step"], terms["discount"])(batch)


def put(buffer: ReplayBuffer, batch: Batch) -> Inserted:
    """Inserts `batch` with its windows."""
    return Insert()(windowed(batch, buffer), buffer)
