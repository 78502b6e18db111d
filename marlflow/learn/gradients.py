"""The stages of gradients that are found apart from being applied: where the rows are, or batch by batch.

Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, https://arxiv.org/abs/1602.01783
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from marlflow.base.batch import Batch
from marlflow.base.items import Gradients, Packed, Update
from marlflow.flow import Place
from marlflow.learn.protocol import Learner


@dataclass(frozen=True, slots=True)
class ComputeGradients:
    """The gradient of the learner's loss over a batch, all rows at once; the learner stays as it is."""

    learner: Learner = field(repr=False)
    by_segment: ClassVar[bool] = True
    gives_segments: ClassVar[bool] = False

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    @property
    def accepts(self) -> Any:
        """What the learner's loss is for."""
        return self.learner.trains_on

    def __call__(self, batch: Batch) -> Gradients:
        """The gradient, and what is to be reported of the rows."""
        return self.learner.gradients(batch)


@dataclass(slots=True)
class Average:
    """Gathers the gradients of `batches` batches that have rows; emits their mean, see `mean_gradients`."""

    batches: int
    held: list[Packed] = field(default_factory=list, repr=False)
    at_most_one: ClassVar[bool] = True

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


def mean_gradients(gradients: Sequence[Gradients]) -> Gradients:
    """The gradient that all rows would have had at once: the mean, weighted by rows; raises ValueError for none."""
    if not gradients:
        raise ValueError("expected at least one gradient, got none")
    known = [found for found in gradients if found.rows] or gradients[:1]
    rows = sum(found.rows for found in known)
    shares = [found.rows / rows if rows else 1.0 for found in known]
    weighed = list(zip(known, shares, strict=True))
    flat = np.average([found.flat for found in known], axis=0, weights=shares).astype(np.float32)
    loss = {name: sum(found.loss[name] * share for found, share in weighed) for name in known[0].loss}
    version_mean = sum(found.version_mean * share for found, share in weighed)
    return Gradients(flat, rows, loss, version_mean, sum(found.rows_carried for found in known))


@dataclass(frozen=True, slots=True)
class ApplyGradients:
    """One optimiser step by a gradient that was found with the same parameters, or with older ones."""

    learner: Learner = field(repr=False)

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    @property
    def updates(self) -> str:
        """The learner whose parameters this stage changes."""
        return self.learner.name

    def __call__(self, gradients: Gradients) -> Update:
        """What came of it."""
        return self.learner.apply(gradients)
