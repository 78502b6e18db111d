"""What a plan's stages need of a learner."""

from __future__ import annotations

from typing import Protocol

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.items import Update, Weights
from marlflow.flow import Place


class Learner(Protocol):
    """Owns the parameters of a policy. Stages that name it run at its `place`.

    update = learner.update(batch, epochs=10, minibatch_agent_steps=128)
    weights = learner.publish()
    """

    name: str
    place: Place | None
    trains_on: type
    """The type of item its loss is for."""
    version: int
    updates: int
    """Optimiser steps so far; and what it was when the learner last published, and last renewed its target."""
    updates_when_published: int
    updates_when_synced: int
    stale_rows_dropped: int
    """Rows dropped as too old since the last update, which reports them."""
    published: Weights

    def values(self, obs: Array) -> Array:
        """The critic's values of `obs` [N, ...], float32 [N]."""
        ...

    def update(self, batch: Batch | Transitions, epochs: int = 1, minibatch_agent_steps: int | None = None) -> Update:
        """Learns from each row of `batch` once per epoch."""
        ...

    def sync_target(self) -> None:
        """Copies the parameters into the target."""
        ...

    def publish(self) -> Weights:
        """The acting parameters under a new version."""
        ...
