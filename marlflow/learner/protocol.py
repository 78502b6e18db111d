"""What plans ask of a learner, by use: values, priorities, gradients, updates, a target, and published versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from marlflow.base.batch import Array, Transitions
from marlflow.base.items import Gradients, Update, Weights
from marlflow.base.train_batch import TrainBatch
from marlflow.flow import Place


class Scheduled(Protocol):
    """Knows the settings that change while a run goes on."""

    @property
    def scheduled(self) -> Mapping[str, float]:
        """The settings that were last scheduled, by name."""
        ...


class ValueFunction(Scheduled, Protocol):
    """Estimates returns by the parameters of one version."""

    @property
    def version(self) -> int:
        """The version of the parameters."""
        ...

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """The critic's values of `obs` [N, ...], after `memory` [N, ...] if it is recurrent, float32 [N]."""
        ...


class PriorityFunction(Protocol):
    """Says how much each row is worth learning from."""

    def priorities(self, rows: Transitions) -> Array:
        """The priority of each of `rows` by the loss, with the network as its own target, float32 [N]."""
        ...


class GradientFunction(Protocol):
    """Finds gradients, for a learner elsewhere to apply."""

    @property
    def trains_on(self) -> type:
        """The type of item that the loss is for."""
        ...

    def gradients(self, batch: TrainBatch) -> Gradients:
        """The gradient of the loss over all rows."""
        ...


class Updates(Protocol):
    """Changes its parameters by what it is given."""

    stale_rows_dropped: int
    """Rows dropped as too old since the last update, which reports them."""

    @property
    def trains_on(self) -> type:
        """The type of item that the loss is for."""
        ...

    @property
    def updates(self) -> int:
        """Number of optimizer steps so far."""
        ...

    def update(self, batch: TrainBatch, epochs: int = 1, minibatch_agent_steps: int | None = None) -> Update:
        """Learns from each row of `batch` once per epoch."""
        ...

    def apply(self, gradients: Gradients) -> Update:
        """One optimizer step by gradients that were found elsewhere."""
        ...


class HasTarget(Scheduled, Protocol):
    """Has a target network that follows its parameters."""

    @property
    def updates(self) -> int:
        """Number of optimizer steps so far."""
        ...

    @property
    def updates_when_synced(self) -> int:
        """Number of optimizer steps when the target was last renewed."""
        ...

    def sync_target(self, tau: float = 1.0) -> None:
        """Moves the target by the fraction `tau` of the way to the parameters."""
        ...


class Publishes(Protocol):
    """Hands out the parameters that act, in versions."""

    @property
    def updates(self) -> int:
        """Number of optimizer steps so far."""
        ...

    @property
    def updates_when_published(self) -> int:
        """Number of optimizer steps when the parameters were last published."""
        ...

    @property
    def published(self) -> Mapping[str, Weights]:
        """The weights of each policy that were last published, all under one version."""
        ...

    def publish(self) -> Mapping[str, Weights]:
        """The acting parameters under a new version."""
        ...


class Learner(ValueFunction, PriorityFunction, GradientFunction, Updates, HasTarget, Publishes, Protocol):
    """Owns the parameters of one policy or of several. Stages `at` it run at its `place`.

    update = learner.update(batch, epochs=10, minibatch_agent_steps=128)
    weights = learner.publish()
    """

    name: str
    place: Place | None

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes the present values of what is scheduled, by name."""
        ...
