"""Stages of gradients that are found apart from being applied: where the rows are, or batch by batch.

Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, https://arxiv.org/abs/1602.01783
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

from marlflow.base.batch import Batch
from marlflow.base.items import Gradients, Packed, Update
from marlflow.flow import Traits
from marlflow.learn.protocol import Learner
from marlflow.stages.updates import loss_input


@dataclass(frozen=True, slots=True)
class ComputeGradients:
    """The gradient of the learner's loss over a batch, all rows at once; the learner stays as it is."""

    traits: ClassVar[Traits] = Traits(accepts=loss_input, movable="fragments", emits_segments=False)

    def __call__(self, batch: Batch, learner: Learner) -> Gradients:
        """The gradient, and what is to be reported of the rows."""
        return learner.gradients(batch)


@dataclass(slots=True)
class Average:
    """Gathers the gradients of `batches` batches that have rows; emits their mean, see `mean_gradients`."""

    traits: ClassVar[Traits] = Traits(at_most_one=True)

    batches: int
    held: list[Packed] = field(default_factory=list, repr=False)

    def add(self, gradients: Gradients) -> Sequence[Gradients]:
        """Keeps the gradient, which comes packed; the mean, if it is complete, packed until a place opens it."""
        if gradients.rows:
            self.held.append(cast("Packed", gradients))
        if len(self.held) < self.batches:
            return []
        payloads = tuple(payload for held in self.held for payload in held.payloads)
        rows = sum(held.rows for held in self.held)
        self.held.clear()
        return [cast("Gradients", Packed(rows, payloads))]


@dataclass(frozen=True, slots=True)
class ApplyGradients:
    """One optimizer step by a gradient that was found with the same parameters, or with older ones."""

    traits: ClassVar[Traits] = Traits(updates=True)

    def __call__(self, gradients: Gradients, learner: Learner) -> Update:
        """The report of the step."""
        return learner.apply(gradients)
