"""Stages that estimate advantages and value targets of rows, by the critic of the learner that they run at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from marlflow.base.batch import Batch, EstimatedBatch
from marlflow.base.errors import PlanInvalid
from marlflow.base.items import Fragment
from marlflow.flow import Traits
from marlflow.learn.estimators import advantages, normalised
from marlflow.learn.protocol import Learner
from marlflow.learn.vtrace import Acting, corrected, log_probs


@dataclass(frozen=True, slots=True)
class Advantages:
    """Generalized advantage estimates by the learner's critic (Schulman et al., 2016, arXiv:1506.02438).

    The version of the critic is the segments' `estimated_by`. A fragment is opened where this runs.
    """

    traits: ClassVar[Traits] = Traits(movable="fragments")

    discount: float
    gae_lambda: float

    def __call__(self, batch: Batch | Fragment, learner: Learner) -> EstimatedBatch:
        """`batch` with `value`, `advantage` and `value_target`."""
        if isinstance(batch, Fragment):
            raise PlanInvalid(["it expects rows, but got a fragment unopened: its learner has no place"])
        now = learner.scheduled
        discount, gae_lambda = now.get("discount", self.discount), now.get("gae_lambda", self.gae_lambda)
        estimated = advantages(batch, learner, discount, gae_lambda)
        estimated_by = np.full(len(batch.segments["length"]), learner.version)
        return EstimatedBatch(estimated.columns, {**estimated.segments, "estimated_by": estimated_by})


@dataclass(frozen=True, slots=True)
class Normalize:
    """Scales advantages to mean 0 and standard deviation 1, over the whole batch (Andrychowicz et al., 2021)."""

    traits: ClassVar[Traits] = Traits(movable="batches")

    def __call__(self, batch: EstimatedBatch) -> EstimatedBatch:
        """`batch` with its `advantage` scaled."""
        return normalised(batch)


@dataclass(frozen=True, slots=True)
class VTrace:
    """V-trace by the learner's present actor and critic (Espeholt et al., 2018, arXiv:1802.01561, section 4).

    The ratios of probabilities, the present ones over those at the time of the choice, are cut at `rho_max` in the
    corrections and at `c_max` along the trajectory.
    """

    traits: ClassVar[Traits] = Traits(
        unmovable_because="it corrects for what its learner has learned since the rows were made"
    )

    discount: float
    trace_lambda: float = 1.0
    rho_max: float = 1.0
    c_max: float = 1.0

    def __call__(self, batch: Batch, learner: Learner) -> EstimatedBatch:
        """`batch` with `value`, `advantage` and `value_target`, and the present `logp` of its actions."""
        names = ("discount", "trace_lambda", "rho_max", "c_max")
        settings = [learner.scheduled.get(name, getattr(self, name)) for name in names]
        logp = log_probs(cast("Acting", learner), batch)
        return corrected(batch, logp, learner, *settings)
