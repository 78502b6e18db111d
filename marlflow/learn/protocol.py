"""What a plan's stages need of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from marlflow.base.batch import Array, Transitions
from marlflow.base.items import Gradients, Update, Weights
from marlflow.flow import Place
from marlflow.learn.reports import Trained


class Learner(Protocol):
    """Owns the parameters of a policy. Stages `at` it run at its `place`.

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
    scheduled: Mapping[str, float]
    """The settings that were last scheduled, by name."""

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """The critic's values of `obs` [N, ...], after `memory` [N, ...] if it is recurrent, float32 [N]."""
        ...

    def priorities(self, rows: Transitions) -> Array:
        """What the loss says of each of `rows` with the network as its own target, float32 [N]."""
        ...

    def update(self, batch: Trained, epochs: int = 1, minibatch_agent_steps: int | None = None) -> Update:
        """Learns from each row of `batch` once per epoch."""
        ...

    def gradients(self, batch: Trained) -> Gradients:
        """The gradient of the loss over all rows, for the learner itself to `apply`."""
        ...

    def apply(self, gradients: Gradients) -> Update:
        """One optimiser step by gradients that were found elsewhere."""
        ...

    def sync_target(self, tau: float = 1.0) -> None:
        """Moves the target by the share `tau` of the way to the parameters."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes the present values of what is scheduled, by name."""
        ...

    def publish(self) -> Weights:
        """The acting parameters under a new version."""
        ...
