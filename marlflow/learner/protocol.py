"""The protocol of a learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from marlflow.base.arrays import Array
from marlflow.batches.batch import TrainBatch, Transitions
from marlflow.batches.critic_input import CriticInput
from marlflow.batches.items import Gradients, Update, Weights
from marlflow.flow import Place


class Scheduled(Protocol):
    """Has settings that follow a schedule during a run."""

    @property
    def scheduled(self) -> Mapping[str, float]:
        """The current values of the scheduled settings, by name."""
        ...


class Learner(Scheduled, Protocol):
    """Owns the parameters and optimizers of one policy or several. Stages `at` the learner run at its `place`.

    update = learner.update(batch, epochs=10, minibatch_agent_steps=128)
    weights = learner.publish()
    """

    name: str
    place: Place | None
    stale_rows_dropped: int
    """Number of rows dropped as too old since the last update."""

    @property
    def seats(self) -> Mapping[str, tuple[int, ...]]:
        """The agent slots of each of its policies, sorted; an empty tuple if they are not known beforehand."""
        ...

    @property
    def trains_on(self) -> type:
        """The type of batch that the loss takes."""
        ...

    @property
    def loss_groups(self) -> Mapping[str, type]:
        """The loss groups that stages may train apart, with the type of batch of each; empty: all train together."""
        ...

    @property
    def version(self) -> int:
        """The version of the parameters."""
        ...

    @property
    def critic_input(self) -> CriticInput | None:
        """The rows that a central critic sees; None if the critic sees the column `obs`."""
        ...

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """Return the critic's values, float32 [N], of `obs` [N, ...] and, if it is recurrent, `memory` [N, ...].

        For a central critic, `obs` are rows of its `critic_input`, without memory.
        """
        ...

    def priorities(self, rows: Transitions) -> Array:
        """Return each row's priority by the loss, float32 [N], with the network as its own target."""
        ...

    def sum_over_shards(self, numbers: list[float]) -> list[float]:
        """Return the sums of `numbers` over the replicas of a learner on the workers; of any other, `numbers`.

        Collective: for stages with `Traits(over_shards=True)`, which every replica calls, also without rows.
        """
        ...

    def gradients(self, batch: TrainBatch) -> Gradients:
        """Return the gradient of the loss over all rows, which a learner elsewhere applies."""
        ...

    def apply(self, gradients: Gradients) -> Update:
        """Take one optimizer step by gradients computed elsewhere."""
        ...

    def update(
        self,
        batch: TrainBatch,
        epochs: int = 1,
        minibatch_agent_steps: int | None = None,
        policy: str | None = None,
        groups: Sequence[str] | None = None,
    ) -> Update:
        """Train on each row of `batch` once per epoch.

        With `policy`, only the loss groups of this policy, and the groups that belong to no policy, are trained; with
        `groups`, only the loss groups of these names.
        """
        ...

    @property
    def updates(self) -> int:
        """Number of optimizer steps so far."""
        ...

    @property
    def updates_when_synced(self) -> int:
        """Number of optimizer steps at the last target update."""
        ...

    def sync_target(self, tau: float = 1.0) -> None:
        """Move the target network by the fraction `tau` toward the parameters (soft update)."""
        ...

    @property
    def updates_when_published(self) -> int:
        """Number of optimizer steps at the last `publish`."""
        ...

    @property
    def published(self) -> Mapping[str, Weights]:
        """The last published weights, by policy, all of one version."""
        ...

    def publish(self) -> Mapping[str, Weights]:
        """Publish the acting parameters under the next version (weight synchronization)."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the current values of scheduled settings, by name."""
        ...
