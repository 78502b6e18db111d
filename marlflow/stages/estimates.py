"""Stages that compute advantages and value targets: GAE and V-trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from marlflow.base.errors import PlanInvalid
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.batches.items import Fragment
from marlflow.flow import Traits
from marlflow.learner.advantages import PolicyEvaluator, advantages, corrected, log_probs, normalized
from marlflow.learner.protocol import Learner, ValueFunction


@dataclass(frozen=True, slots=True)
class Advantages:
    """Generalized advantage estimation, GAE (Schulman et al., 2016, arXiv:1506.02438).

    Segments record the critic's version as `estimated_by`. For a central critic, batches get the column `central`, the
    rows that it sees. `bootstrap_at_death`: see `learner.advantages`.
    """

    traits: ClassVar[Traits] = Traits(movable="fragments")

    discount: float
    gae_lambda: float
    bootstrap_at_death: bool = False

    def __call__(self, batch: Batch | Fragment, learner: Learner) -> EstimatedBatch:
        """Add `value`, `advantage` and `value_target`, and for a central critic `central`."""
        # Fragments are opened where a stage has a place; at the driver there is none.
        if isinstance(batch, Fragment):
            raise PlanInvalid(["it expects rows, but got a fragment unopened: its learner has no place"])
        # Scheduled settings take precedence over the configured values.
        now = learner.scheduled
        discount, gae_lambda = now.get("discount", self.discount), now.get("gae_lambda", self.gae_lambda)
        estimated = advantages(with_central(batch, learner), learner, discount, gae_lambda, self.bootstrap_at_death)
        estimated_by = np.full(len(batch.segments["length"]), learner.version)
        return EstimatedBatch(estimated.columns, {**estimated.segments, "estimated_by": estimated_by})


@dataclass(frozen=True, slots=True)
class Normalize:
    """Normalizes advantages to mean 0 and standard deviation 1 (Andrychowicz et al., 2021)."""

    traits: ClassVar[Traits] = Traits(movable="batches")

    def __call__(self, batch: EstimatedBatch) -> EstimatedBatch:
        return normalized(batch)


@dataclass(frozen=True, slots=True)
class VTrace:
    """V-trace with the current actor and critic (Espeholt et al., 2018, arXiv:1802.01561, section 4).

    Importance ratios are clipped at `rho_max` in temporal differences, at `c_max` along the trajectory.
    `bootstrap_at_death`: see `learner.advantages`.
    """

    traits: ClassVar[Traits] = Traits(
        unmovable_because="it corrects for what its learner has learned since the rows were made"
    )

    discount: float
    trace_lambda: float = 1.0
    rho_max: float = 1.0
    c_max: float = 1.0
    bootstrap_at_death: bool = field(default=False, kw_only=True)

    def __call__(self, batch: Batch, learner: Learner) -> EstimatedBatch:
        """Add `value`, `advantage`, `value_target`, the current `logp`, and for a central critic `central`."""
        names = ("discount", "trace_lambda", "rho_max", "c_max")
        settings = [learner.scheduled.get(name, getattr(self, name)) for name in names]
        logp = log_probs(cast("PolicyEvaluator", learner), batch)
        return corrected(
            with_central(batch, learner), logp, learner, *settings, bootstrap_at_death=self.bootstrap_at_death
        )


def with_central(batch: Batch, learner: ValueFunction) -> Batch:
    """Return `batch` with the rows that the learner's critic sees, if it is central."""
    seen = learner.critic_input
    # A shard without rows has no columns of agents or states either.
    return batch if seen is None or not batch.rows else seen.added_to(batch)
