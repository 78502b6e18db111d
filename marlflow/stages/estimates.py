"""Stages that compute advantages and value targets: GAE, also of costs that have a limit, and V-trace.

The formulas are in losses.gae_and_vtrace, and learner.advantages applies them to a batch with the critic's values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from marlflow.base.errors import PlanInvalid
from marlflow.batches.batch import Batch, EstimatedBatch, TrainBatch
from marlflow.batches.items import Fragment
from marlflow.flow import Traits
from marlflow.learner.advantages import actor_log_probs, advantages, corrected, normalized, with_cost_advantages
from marlflow.learner.part_state import COST_CRITIC, MULTIPLIER, Multiplier
from marlflow.learner.protocol import Learner


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
class NormalizeShards:
    """Normalizes advantages over the rows of all workers, where a learner has a replica on each (DD-PPO)."""

    traits: ClassVar[Traits] = Traits(over_shards=True)

    def __call__(self, batch: EstimatedBatch, learner: Learner) -> EstimatedBatch:
        return normalized(batch, learner.sum_over_shards)


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
        keeper = cast("Any", learner)
        logp = actor_log_probs(keeper.module.actor, batch, keeper.device)
        return corrected(
            with_central(batch, learner), logp, learner, *settings, bootstrap_at_death=self.bootstrap_at_death
        )


def with_central(batch: Batch, learner: Learner) -> Batch:
    """Return `batch` with the rows that the learner's critic sees, if it is central."""
    seen = learner.critic_input
    # A shard without rows has no columns of agents or states either.
    return batch if seen is None or not batch.rows else seen.added_to(batch)


AnyBatch = TypeVar("AnyBatch", bound=TrainBatch)


@dataclass(frozen=True, slots=True)
class UpdateMultiplier:
    """Moves the multiplier of a cost limit before an update, by the episodes that ended since the last one.

    multiplier = max(0, multiplier + `learning_rate` * (mean episode cost - `cost_limit`)), an ascent of the dual
    (Ray et al., 2019). Without such an episode, or for a batch without rows, it stays.
    """

    traits: ClassVar[Traits] = Traits(unmovable_because="its learner has the multiplier")

    cost_limit: float
    learning_rate: float
    now: Callable[[Learner], tuple[float, float]] | None = field(default=None, repr=False, compare=False)
    """Gives the present limit and learning rate, if a part's settings may be scheduled."""

    def __call__(self, batch: AnyBatch, learner: Learner) -> AnyBatch:
        if batch.rows:
            now = learner.scheduled
            limit, rate = (self.cost_limit, self.learning_rate) if self.now is None else self.now(learner)
            multiplier: Multiplier = cast("Any", learner).part_state(MULTIPLIER)
            if (value := multiplier.step(now, limit, rate)) != now.get(MULTIPLIER):
                # Losses weigh costs by it, too.
                learner.set_schedule({MULTIPLIER: value})
        return batch


@dataclass(frozen=True, slots=True)
class CostAdvantages:
    """Estimates the advantages of costs (GAE), and subtracts them from the advantages of rewards by a multiplier.

    The learner has the cost critic and the multiplier. `advantage` becomes
    (advantage - multiplier * cost_advantage) / (1 + multiplier); put Normalize after it, not before.
    """

    traits: ClassVar[Traits] = Traits(unmovable_because="its learner has the multiplier")

    discount: float
    gae_lambda: float

    def __call__(self, batch: EstimatedBatch, learner: Learner) -> EstimatedBatch:
        """Add `cost_advantage` and `cost_value_target`, and replace `advantage`."""
        # A shard or a batch whose rows were all stale has no columns of estimates to combine.
        if not batch.rows:
            return batch
        now = learner.scheduled
        discount, gae_lambda = now.get("discount", self.discount), now.get("gae_lambda", self.gae_lambda)
        critic = cast("Any", learner).estimator(COST_CRITIC)
        return with_cost_advantages(batch, critic, discount, gae_lambda, now[MULTIPLIER])
