"""Stages of learners whose costs have a limit: the multiplier, and the advantages of costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.train_batch import TrainBatch
from marlflow.flow import Traits
from marlflow.learner.advantages import with_cost_advantages
from marlflow.learner.part_state import COST_CRITIC, MULTIPLIER, Multiplier
from marlflow.learner.protocol import Learner

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

    def __call__(self, batch: AnyBatch, learner: Learner) -> AnyBatch:
        if batch.rows:
            now = learner.scheduled
            # A part's settings are scheduled under its kind.
            limit = now.get("CostLimit.limit", self.cost_limit)
            rate = now.get("CostLimit.multiplier_learning_rate", self.learning_rate)
            multiplier: Multiplier = cast("Any", learner).part_state(MULTIPLIER)
            if (value := multiplier.step(now, limit, rate)) != now.get(MULTIPLIER):
                # Losses weigh costs by it, too.
                learner.set_schedule({MULTIPLIER: value})
        return batch


@dataclass(frozen=True, slots=True)
class CostAdvantages:
    """Estimates the advantages of costs (GAE), and combines them with those of rewards by the learner's multiplier.

    The learner's cost critic estimates them. `advantage` becomes
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
