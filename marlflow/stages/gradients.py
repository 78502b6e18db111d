"""Stages that compute and apply gradients separately, on the workers or batch by batch.

Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, https://arxiv.org/abs/1602.01783
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

from marlflow.batches.batch import Batch
from marlflow.batches.items import Gradients, Packed, Update
from marlflow.flow import Traits
from marlflow.learner.compiled_updates import GRADIENTS_APART
from marlflow.learner.protocol import Learner
from marlflow.stages.updates import loss_input


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
