"""The loss of distributional Q-learning (C51: Bellemare et al., 2017, arXiv:1707.06887)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learner.loss import LossTerms
from marlflow.losses.q_learning import atoms_of, categorical_divergence, categorical_q_learning_target
from marlflow.policy.q import DistributionalQNetwork


class C51Loss:
    """The KL divergence between (double) Q-learning's target and predicted distributions, importance-weighted.

    Priorities are the divergences (Hessel et al., 2018, arXiv:1710.02298).
    """

    def __init__(self, double: bool = True) -> None:
        self.double = double

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

    def __call__(
        self, module: DistributionalQNetwork, target_module: DistributionalQNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        logits_tm1 = module.logits(minibatch["obs"])
        divergence = self._divergence(logits_tm1, module, target_module, minibatch)
        total = (divergence * minibatch["weight"]).mean()
        with torch.no_grad():
            # Rounding can make a divergence slightly negative.
            priorities = divergence.clamp(min=0.0)
            q_mean = module.head.expected(logits_tm1).mean()
            terms = {"kl": total.detach(), "kl_mean": priorities.mean(), "q_mean": q_mean}
        return LossTerms(total, terms, priorities)

    def priorities(
        self, module: DistributionalQNetwork, target_module: DistributionalQNetwork, minibatch: Mapping[str, Tensor]
    ) -> Tensor:
        """Return each row's divergence, [N]."""
        logits_tm1 = module.logits(minibatch["obs"])
        return self._divergence(logits_tm1, module, target_module, minibatch).clamp(min=0.0)

    def _divergence(
        self,
        logits_tm1: Tensor,
        module: DistributionalQNetwork,
        target_module: DistributionalQNetwork,
        minibatch: Mapping[str, Tensor],
    ) -> Tensor:
        next_obs = minibatch["next_obs"]
        with torch.no_grad():
            logits_t = target_module.logits(next_obs)
            # Next actions are greedy in the expected values, of the online network if double.
            q_t_selector = module(next_obs) if self.double else target_module.head.expected(logits_t)
            target_tm1 = categorical_q_learning_target(
                minibatch["reward"],
                minibatch["discount"],
                q_t_selector,
                logits_t,
                module.head.support,
                minibatch.get("next_mask"),
            )
        return categorical_divergence(atoms_of(logits_tm1, minibatch["action"]), target_tm1)
