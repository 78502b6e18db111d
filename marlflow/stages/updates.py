"""Stages at the learner: update, sync the target network, and publish weights (weight synchronization)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from marlflow.base.items import Update
from marlflow.base.train_batch import TrainBatch
from marlflow.flow import Traits
from marlflow.learner.protocol import Learner


def loss_input(learner: Any) -> Any:
    """Return the input type of the learner's loss."""
    return learner.trains_on


@dataclass(frozen=True, slots=True)
class Learn:
    """Trains for `epochs`, in shuffled minibatches of at least `minibatch` rows."""

    traits: ClassVar[Traits] = Traits(accepts=loss_input, updates=True)

    epochs: int = 1
    minibatch: int | None = None

    def __call__(self, batch: TrainBatch, learner: Learner) -> Update:
        return learner.update(batch, self.epochs, self.minibatch)


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """Updates the target network every `every` optimizer steps (Mnih et al., 2015).

    `tau` below 1 makes a soft update (Lillicrap et al., 2016, arXiv:1509.02971); a schedule of `tau` takes precedence.
    """

    every: int
    tau: float = 1.0

    def __call__(self, update: Update, learner: Learner) -> Update:
        # A batch may take several optimizer steps, so a multiple of `every` may be skipped.
        if learner.updates - learner.updates_when_synced >= self.every:
            learner.sync_target(learner.scheduled.get("tau", self.tau))
        return update


@dataclass(frozen=True, slots=True)
class Publish:
    """Publishes the actor's weights to the workers every `every` optimizer steps (RLlib's sync_weights)."""

    traits: ClassVar[Traits] = Traits(publishes=True)

    every: int = 1

    def __call__(self, update: Update, learner: Learner) -> Update:
        if learner.updates - learner.updates_when_published >= self.every:
            learner.publish()
        return update
