"""Stages that change a learner, renew its target network, and hand out its weights. They run where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from marlflow.base.items import Update
from marlflow.base.train_batch import TrainBatch
from marlflow.flow import Traits
from marlflow.learn.protocol import Learner


def loss_input(learner: Any) -> Any:
    """The type of item that the learner's loss is for."""
    return learner.trains_on


@dataclass(frozen=True, slots=True)
class Learn:
    """Optimizer steps on the learner's own loss: each row once per epoch, in minibatches of at least `minibatch`."""

    traits: ClassVar[Traits] = Traits(accepts=loss_input, updates=True)

    epochs: int = 1
    minibatch: int | None = None

    def __call__(self, batch: TrainBatch, learner: Learner) -> Update:
        """The report of the update."""
        return learner.update(batch, self.epochs, self.minibatch)


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """Renews the learner's target network every `every` optimizer steps (Mnih et al., 2015).

    With `tau` below 1 it goes only so far towards the parameters (Lillicrap et al., 2016, arXiv:1509.02971); a schedule
    of the setting `tau` counts more.
    """

    every: int
    tau: float = 1.0

    def __call__(self, update: Update, learner: Learner) -> Update:
        """The report, unchanged."""
        if learner.updates - learner.updates_when_synced >= self.every:
            learner.sync_target(learner.scheduled.get("tau", self.tau))
        return update


@dataclass(frozen=True, slots=True)
class Publish:
    """Hands the acting parameters to whoever acts with them, under a new version, every `every` optimizer steps."""

    traits: ClassVar[Traits] = Traits(publishes=True)

    every: int = 1

    def __call__(self, update: Update, learner: Learner) -> Update:
        """The report, unchanged."""
        if learner.updates - learner.updates_when_published >= self.every:
            learner.publish()
        return update
