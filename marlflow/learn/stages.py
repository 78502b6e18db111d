"""The stages of a plan that belong to a learner. They run where the learner is; neighbours are one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from marlflow.base.batch import Batch, EstimatedBatch
from marlflow.base.errors import PlanInvalid
from marlflow.base.items import Fragment, Update
from marlflow.base.joint import JointBatch, join
from marlflow.base.train_batch import TrainBatch
from marlflow.flow import Place
from marlflow.learn.estimators import advantages, normalised
from marlflow.learn.protocol import Learner


@dataclass(frozen=True, slots=True)
class DropStale:
    """Drops what was sampled more than `max_staleness` versions ago, whole segments at a time, and counts the rows.

    A row carried over from the fragment before keeps its older version and is exempt (DESIGN, "Experience").
    """

    learner: Learner = field(repr=False)
    max_staleness: int
    passes_segments: ClassVar[bool] = True
    stays: ClassVar[str] = "its learner reports what it drops"

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    def __call__(self, batch: Batch) -> Batch:
        """The segments of `batch` that are fresh enough."""
        oldest = batch.columns["version"].copy()
        firsts = batch.ends() + 1 - batch.segments["length"]
        carried = firsts[batch.segments["carried"]]
        oldest[carried] = np.iinfo(oldest.dtype).max
        stale = oldest < self.learner.version - self.max_staleness
        if not stale.any():
            return batch
        fresh = np.add.reduceat(stale, firsts) == 0
        kept = batch.only(fresh)
        self.learner.stale_rows_dropped += batch.rows - kept.rows
        return kept


@dataclass(frozen=True, slots=True)
class Join:
    """Lays the batches of a joint stream side by side: one joint row for each copy, episode and env step.

    `agents` fixes each policy's agent slots, where a network's input must not depend on who was there.
    """

    learner: Learner = field(repr=False)
    agents: Mapping[str, Sequence[int]] | None = None

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    def __call__(self, batches: Mapping[str, Batch] | Batch) -> JointBatch:
        """The batches as one; what a gather gives counts as a batch until it is opened, so only here it shows."""
        if isinstance(batches, Batch):
            raise PlanInvalid(["it expects a joint stream, but got the rows of one policy: see ByPolicy(joint=...)"])
        return join(batches, self.agents)


@dataclass(frozen=True, slots=True)
class Advantages:
    """Generalised advantage estimates by the learner's critic (Schulman et al., 2016, arXiv:1506.02438).

    The version of the critic is the segments' `estimated_by`. A fragment is opened where this runs.
    """

    learner: Learner = field(repr=False)
    discount: float
    gae_lambda: float
    by_segment: ClassVar[bool] = True

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    def __call__(self, batch: Batch | Fragment) -> EstimatedBatch:
        """`batch` with `value`, `advantage` and `value_target`."""
        if isinstance(batch, Fragment):
            raise PlanInvalid(["it expects rows, but got a fragment unopened: its learner has no place"])
        now = self.learner.scheduled
        discount, gae_lambda = now.get("discount", self.discount), now.get("gae_lambda", self.gae_lambda)
        estimated = advantages(batch, self.learner, discount, gae_lambda)
        estimated_by = np.full(len(batch.segments["length"]), self.learner.version)
        return EstimatedBatch(estimated.columns, {**estimated.segments, "estimated_by": estimated_by})


@dataclass(frozen=True, slots=True)
class Normalise:
    """Scales advantages to mean 0 and standard deviation 1, over the whole batch (Andrychowicz et al., 2021)."""

    learner: Learner = field(repr=False)
    by_segment: ClassVar[bool] = False

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    def __call__(self, batch: EstimatedBatch) -> EstimatedBatch:
        """`batch` with its `advantage` scaled."""
        return normalised(batch)


@dataclass(frozen=True, slots=True)
class Learn:
    """Optimiser steps on the learner's own loss: each row once per epoch, in minibatches of at least `minibatch`."""

    learner: Learner = field(repr=False)
    epochs: int = 1
    minibatch: int | None = None

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    @property
    def accepts(self) -> type:
        """What the learner's loss is for."""
        return self.learner.trains_on

    @property
    def updates(self) -> str:
        """The learner whose parameters this stage changes."""
        return self.learner.name

    def __call__(self, batch: TrainBatch) -> Update:
        """What came of it."""
        return self.learner.update(batch, self.epochs, self.minibatch)


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """Renews the learner's target network every `every` optimiser steps (Mnih et al., 2015).

    With `tau` below 1 it goes only so far towards the parameters (Lillicrap et al., 2016, arXiv:1509.02971); a schedule
    of the setting `tau` counts more.
    """

    learner: Learner = field(repr=False)
    every: int
    tau: float = 1.0

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    def __call__(self, update: Update) -> Update:
        """The report, unchanged."""
        if self.learner.updates - self.learner.updates_when_synced >= self.every:
            self.learner.sync_target(self.learner.scheduled.get("tau", self.tau))
        return update


@dataclass(frozen=True, slots=True)
class Publish:
    """Hands the acting parameters to whoever acts with them, under a new version, every `every` optimiser steps."""

    learner: Learner = field(repr=False)
    every: int = 1
    publishes: ClassVar[bool] = True

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    def __call__(self, update: Update) -> Update:
        """The report, unchanged."""
        if self.learner.updates - self.learner.updates_when_published >= self.every:
            self.learner.publish()
        return update
