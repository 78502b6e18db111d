"""PPO's loss for a learner: the clipped surrogate, the value loss and the entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learn.learner import LossTerms
from marlflow.losses.ppo import approximate_kl, clipped_surrogate_loss, clipped_value_loss, value_loss
from marlflow.policy.actor_critic import ActorCritic


class PPOLoss:
    """Of Schulman et al. (2017, arXiv:1707.06347), equation 9; `value_clip_range` None leaves values unclipped."""

    def __init__(
        self,
        clip_range: float = 0.2,
        value_coefficient: float = 0.5,
        entropy_coefficient: float = 0.01,
        value_clip_range: float | None = None,
    ) -> None:
        self.clip_range, self.value_coefficient = clip_range, value_coefficient
        self.entropy_coefficient, self.value_clip_range = entropy_coefficient, value_clip_range

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes `entropy_coefficient` and `clip_range`."""
        self.entropy_coefficient = values.get("entropy_coefficient", self.entropy_coefficient)
        self.clip_range = values.get("clip_range", self.clip_range)

    def __call__(self, module: ActorCritic, _target: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of `minibatch` with columns from `estimators.advantages`."""
        outputs, value = module(minibatch["obs"])
        mask = minibatch.get("action_mask")
        logp, entropy_by_row = module.actor.log_prob_and_entropy(outputs, minibatch["action"], mask)
        behaviour_logp = minibatch["behaviour_logp"]
        policy = clipped_surrogate_loss(logp, behaviour_logp, minibatch["advantage"], self.clip_range).mean()
        values = self._value_loss(value, minibatch).mean()
        entropy = entropy_by_row.mean()
        total = policy + self.value_coefficient * values - self.entropy_coefficient * entropy
        with torch.no_grad():
            kl = approximate_kl(logp, behaviour_logp).mean()
        terms = {"policy": policy.detach(), "value": values.detach(), "entropy": entropy.detach(), "kl": kl}
        return LossTerms(total, terms)

    def _value_loss(self, value: Tensor, minibatch: Mapping[str, Tensor]) -> Tensor:
        target = minibatch["value_target"]
        if self.value_clip_range is None:
            return value_loss(value, target)
        return clipped_value_loss(value, minibatch["value"], target, self.value_clip_range)
