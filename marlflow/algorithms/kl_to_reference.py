"""A penalty for leaving a reference policy, as in RLHF (Ziegler et al., 2019, arXiv:1909.08593)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from marlflow.algorithms.algorithm import TorchAlgorithm
from marlflow.algorithms.part import Part, Point
from marlflow.base.arrays import Array
from marlflow.base.errors import Problem
from marlflow.base.ranges import Weight
from marlflow.base.schedules import OrSchedule
from marlflow.batches.batch import Batch
from marlflow.flow import Traits
from marlflow.learner.advantages import actor_log_probs
from marlflow.learner.extra_losses import ExtraLoss, ExtraLosses
from marlflow.learner.flat_parameters import FlatParameters
from marlflow.learner.part_state import PartState
from marlflow.learner.protocol import Learner
from marlflow.policy.recurrent import RecurrentTorsoConfig
from marlflow.policy.tensors import as_tensor, read_flat


@dataclass(frozen=True)
class KLToReference(Part):
    """Lowers each reward by the divergence from a reference policy.

    r <- r - beta (log pi_behavior(a|s) - log pi_reference(a|s)), per decision and in nats, whose expectation is beta
    times the Kullback-Leibler divergence. The reference is the learner's actor as it was at the start of the run, after
    a warm start. Rewards in metrics remain those of the environment.
    """

    traits: ClassVar[Traits] = Traits(unmovable_because="the reference is with its learner")

    beta: OrSchedule[Weight]  #: reward per nat of divergence from the policy's initial parameters

    def validate(self, algorithm: TorchAlgorithm, spaces: Any, model: Any) -> Iterator[Problem]:
        if isinstance(model, RecurrentTorsoConfig):
            reason = "its reference has no memory"
            yield Problem("cannot have a KLToReference", algorithm.name, reason, "use another model")

    def state(self) -> Reference:
        return Reference()

    def stages(self, algorithm: TorchAlgorithm) -> Mapping[Point, Sequence[Callable[..., Any]]]:
        return {"fresh": [self]}

    def extra_losses(self) -> ExtraLosses:
        # Part of the rewards already, so only reported.
        return {"kl_to_reference": ExtraLoss(lambda _, rows: rows["kl_to_reference"].mean(), coefficient=None)}

    def __call__(self, batch: Batch, learner: Learner) -> Batch:
        """Lower `reward`, and add the column `kl_to_reference` (float32 [N]), the difference of log-probabilities."""
        if not batch.rows:
            return batch.with_columns(kl_to_reference=np.zeros(0, np.float32))
        keeper = cast("Any", learner)
        reference_logp = actor_log_probs(keeper.part_state(Reference.name).actor, batch, keeper.device)
        kl = batch.columns["behavior_logp"].astype(np.float64) - reference_logp
        reward = batch.columns["reward"] - self.now("beta", learner) * kl
        return batch.with_columns(reward=reward, kl_to_reference=kl.astype(np.float32))


class Reference(PartState):
    """A frozen copy of the only actor as it was at the start, float32 [P] of parameters."""

    name, is_constant = "reference", True
    actor: Any = None

    def begin(self, module: Any) -> None:
        if self.actor is None:
            self.actor = copy.deepcopy(module.actor)
            self._flat = FlatParameters(self.actor, {self.name: self.actor})
            # Only now, because the order of flat parameters depends on requires_grad.
            self.actor.requires_grad_(False)
        self._flat.load(as_tensor(read_flat(module.actor)))

    def state(self) -> Array:
        flat: Array = self._flat.vector.cpu().numpy().copy()
        return flat

    def load_state(self, state: Array) -> None:
        self._flat.load(as_tensor(state))
