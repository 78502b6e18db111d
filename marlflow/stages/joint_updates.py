"""Stages of on-policy learners of several policies: advantages by one critic, and updates in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.batches.items import Update
from marlflow.batches.joint import EstimatedJointBatches, JointBatches
from marlflow.flow import Traits
from marlflow.flow.protocols import describe
from marlflow.flow.traits import traits_of
from marlflow.learner.protocol import Learner
from marlflow.learner.sequential_updates import TeamLearner, joint_advantages, update_in_order
from marlflow.stages.estimates import with_central
from marlflow.stages.updates import loss_input


@dataclass(frozen=True, slots=True)
class EachPolicy:
    """Applies `operator`, which takes a Batch and the learner, to the rows of each policy of a joint stream."""

    operator: Callable[[Batch, Any], Batch]

    @property
    def description(self) -> str:
        """The text of a drawn plan, with the operator's."""
        return f"EachPolicy({describe(self.operator)})"

    @property
    def traits(self) -> Traits:
        """The traits, with the operator's `max_staleness`."""
        return Traits(max_staleness=traits_of(self.operator, None, "__call__", None).max_staleness)

    def __call__(self, batches: JointBatches, learner: Learner) -> JointBatches:
        return JointBatches({policy: self.operator(batch, learner) for policy, batch in batches.items()})


@dataclass(frozen=True, slots=True)
class JointAdvantages:
    """Generalized advantage estimation (GAE) of several policies by one central critic, normalized over all rows.

    Each agent's advantages are those of its own decisions, as in `Advantages`. `bootstrap_at_death`: see
    `learner.advantages`; survivors may belong to any of the policies.
    """

    discount: float
    gae_lambda: float
    bootstrap_at_death: bool = False

    def __call__(self, batches: JointBatches, learner: Learner) -> EstimatedJointBatches:
        """Add `value`, `advantage` and `value_target` to each policy's rows, and for a central critic `central`."""
        now = learner.scheduled
        discount, gae_lambda = now.get("discount", self.discount), now.get("gae_lambda", self.gae_lambda)
        seen = JointBatches({policy: with_central(batch, learner) for policy, batch in batches.items()})
        estimated = joint_advantages(seen, learner, discount, gae_lambda, self.bootstrap_at_death)
        for policy, batch in estimated.items():
            by = {"estimated_by": np.full(len(batch.segments["length"]), learner.version)}
            estimated[policy] = EstimatedBatch(batch.columns, {**batch.segments, **by})
        return estimated


@dataclass(frozen=True, slots=True)
class LearnInOrder:
    """Trains one policy after another, in random order, each for `epochs` in minibatches of at least `minibatch` rows.

    Each policy accounts for the change of those before it (HAPPO; Kuba et al., 2022, arXiv:2109.11251, algorithm 1).
    """

    traits: ClassVar[Traits] = Traits(accepts=loss_input, updates=True)

    epochs: int = 1
    minibatch: int | None = None

    def __call__(self, batches: EstimatedJointBatches, learner: Learner) -> Update:
        return update_in_order(cast("TeamLearner", learner), batches, self.epochs, self.minibatch)
