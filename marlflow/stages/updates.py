"""Stages at the learner: update, sync the target network, and publish weights (weight synchronization).

Gradients may be computed apart from the update, on the workers or batch by batch: Mnih et al., "Asynchronous methods
for deep reinforcement learning", 2016, https://arxiv.org/abs/1602.01783
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, ClassVar, cast

from marlflow.batches.batch import Batch, TrainBatch
from marlflow.batches.items import Gradients, Packed, Update
from marlflow.flow import StageCall, Traits
from marlflow.learner.compiled_updates import GRADIENTS_APART, STEPS_AHEAD
from marlflow.learner.protocol import Learner, Scheduled
from marlflow.learner.update_job import TargetUpdate
from marlflow.stages.replays import Reprioritize


def loss_input(learner: Any) -> Any:
    """Return the input type of the learner's loss."""
    return learner.trains_on


@dataclass(frozen=True, slots=True)
class Learn:
    """Trains for `epochs`, in shuffled minibatches of at least `minibatch` rows.

    With `groups`, only these loss groups of the learner are trained: several stages of one plan may then train one
    learner, each its own groups, with batches of the type that the learner's `loss_groups` names.
    """

    epochs: int = 1
    minibatch: int | None = None
    groups: tuple[str, ...] | None = None

    @property
    def description(self) -> str:
        """The text in drawings."""
        minibatch = () if self.minibatch is None else (f"minibatch={self.minibatch}",)
        groups = () if self.groups is None else (f"groups={'+'.join(self.groups)}",)
        return f"Learn({', '.join((f'epochs={self.epochs}', *minibatch, *groups))})"

    @property
    def traits(self) -> Traits:
        """The traits, with the groups and the type of their batches."""

        def group_input(learner: Any) -> Any:
            types = getattr(learner, "loss_groups", {})
            # Another check reports groups that the learner does not have.
            known = [types[group] for group in self.groups or () if group in types]
            return reduce(or_, known) if known else Any

        accepts = loss_input if self.groups is None else group_input
        return Traits(accepts=accepts, updates=True, groups=self.groups)

    def __call__(self, batch: TrainBatch, learner: Learner) -> Update:
        return learner.update(batch, self.epochs, self.minibatch, groups=self.groups)

    def ahead(self, learner: Any, after: Sequence[StageCall]) -> int:
        """Return how many batches it may learn from before SyncTarget and the other stages after it act."""
        is_plain = type(self).__call__ is Learn.__call__ and self.epochs == 1 and self.minibatch is None
        # A stage at another learner has effects that this one does not know.
        if any(call.at is not learner for call in after if isinstance(call.operator, SyncTarget | Publish)):
            return 0
        operators = [call.operator for call in after]
        if not (
            is_plain and operators and type(operators[0]) is SyncTarget and getattr(learner, "can_run_ahead", False)
        ):
            return 0
        most = STEPS_AHEAD
        for operator in operators[1:]:
            if type(operator) is Publish and operator.every > 1:
                # The last of them is published.
                most = min(most, max(1, operator.every - (learner.updates - learner.updates_when_published)))
            elif type(operator) is not Reprioritize:
                return 0
        return most

    def several(self, batches: Sequence[TrainBatch], learner: Any, after: Sequence[StageCall]) -> Sequence[Update]:
        """Return the updates by `batches`, with the target's updates between them."""
        sync: SyncTarget = after[0].operator
        updates: Sequence[Update] = learner.update_each(batches, sync.now(learner), self.groups)
        return updates


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
            learner.sync_target(self.now(learner).tau)
        return update

    def now(self, learner: Scheduled) -> TargetUpdate:
        """Return the current settings, after any schedule."""
        return TargetUpdate(self.every, learner.scheduled.get("tau", self.tau))


@dataclass(frozen=True, slots=True)
class Publish:
    """Publishes the actor's weights to the workers every `every` optimizer steps (RLlib's sync_weights)."""

    traits: ClassVar[Traits] = Traits(publishes=True)

    every: int = 1

    def __call__(self, update: Update, learner: Learner) -> Update:
        if learner.updates - learner.updates_when_published >= self.every:
            learner.publish()
        return update


@dataclass(frozen=True, slots=True)
class ComputeGradients:
    """Computes the gradient of the loss, without changing the learner."""

    traits: ClassVar[Traits] = Traits(accepts=loss_input, movable="fragments", emits_segments=False)

    def __call__(self, batch: Batch, learner: Learner) -> Gradients:
        return learner.gradients(batch)


@dataclass(slots=True)
class Average:
    """Averages the gradients of `batches` non-empty batches (see `mean_gradients`)."""

    traits: ClassVar[Traits] = Traits(at_most_one=True)

    batches: int
    held: list[Packed] = field(default_factory=list, repr=False)

    def add(self, gradients: Gradients) -> Sequence[Gradients]:
        """Add a packed gradient; return the mean if complete."""
        if gradients.rows:
            # On the driver a gradient is always packed; it is averaged where it is opened.
            self.held.append(cast("Packed", gradients))
        if len(self.held) < self.batches:
            return []
        payloads = tuple(payload for held in self.held for payload in held.payloads)
        rows = sum(held.rows for held in self.held)
        self.held.clear()
        return [cast("Gradients", Packed(rows, payloads))]


@dataclass(frozen=True, slots=True)
class ApplyGradients:
    """Takes an optimizer step with a gradient, which may have been computed with older parameters."""

    traits: ClassVar[Traits] = Traits(updates=True, not_compiled=GRADIENTS_APART)

    def __call__(self, gradients: Gradients, learner: Learner) -> Update:
        return learner.apply(gradients)
