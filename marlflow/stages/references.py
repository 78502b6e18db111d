"""A penalty for leaving a reference policy, as in learning from human feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from marlflow.base.batch import Batch
from marlflow.flow import Traits
from marlflow.learner.protocol import Learner
from marlflow.learner.vtrace import actor_log_probs


@dataclass(frozen=True, slots=True)
class KLToReference:
    """Subtracts the divergence from a reference policy from each reward (Ziegler et al., 2019, arXiv:1909.08593).

    r <- r - beta (log pi_behavior(a|s) - log pi_reference(a|s)), per decision and in nats, whose expectation is beta
    times the Kullback-Leibler divergence. The reference is the learner's actor as it was at the start of the run. A
    schedule of `kl_to_reference` takes precedence over `beta`. Rewards in metrics remain those of the environment.
    """

    traits: ClassVar[Traits] = Traits(unmovable_because="the reference is with its learner")

    beta: float

    def __call__(self, batch: Batch, learner: Learner) -> Batch:
        """Lower `reward`, and add the column `kl_to_reference` (float32 [N]), the difference of log-probabilities."""
        if not batch.rows:
            return batch.with_columns(kl_to_reference=np.zeros(0, np.float32))
        keeper = cast("Any", learner)
        reference_logp = actor_log_probs(keeper.reference, batch, keeper.device)
        kl = batch.columns["behavior_logp"].astype(np.float64) - reference_logp
        beta = learner.scheduled.get("kl_to_reference", self.beta)
        reward = batch.columns["reward"] - beta * kl
        return batch.with_columns(reward=reward, kl_to_reference=kl.astype(np.float32))
