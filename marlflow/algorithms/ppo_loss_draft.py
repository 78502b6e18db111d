"""PPO's loss for a learner: the clipped surrogate, the value loss and the entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from marlflow.learn.learner import LossTerms
from marlflow.losses.ppo import approximate_kl, clipped_surrogate_loss, clipped_value_loss, value_loss
from marlflow.losses.ppo_gradient import Coefficients, Rows, ppo_gradient
from marlflow.policy.actor_critic import ActorCritic, DensePass


class PPOLoss:
    """Of Schulman et al. (2017, arXiv:1707.06347), equation 9."""

    def __init__(self, coefficients: Coefficients) -> None:
        self.coefficients = coefficients

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes `entropy_coefficient` and `clip_range`."""
        now = self.coefficients
        self.coefficients = replace(
            now,
            entropy=values.get("entropy_coefficient", now.entropy),
            clip_range=values.get("clip_range", now.clip_range),
        )

    def __call__(self, module: ActorCritic, _target: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of `minibatch` with columns from `estimators.advantages`."""
        return self.in_closed_form(module, minibatch) if DensePass.fits(module) else self.composed(module, minibatch)

    def in_closed_form(self, module: ActorCritic, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss with its gradient, outside autograd."""
        with torch.inference_mode():
            ahead = DensePass(module, minibatch["obs"])
            mask = minibatch.get("action_mask")
            rows = Rows(
                action=minibatch["action"].numpy(),
                behaviour_logp_t=minibatch["behaviour_logp"].numpy(),
                advantage_t=minibatch["advantage"].numpy(),
                target_tm1=minibatch["value_target"].numpy(),
                behaviour_v_tm1=minibatch["value"].numpy(),
                mask=None if mask is None else mask.numpy(),
            )
            terms, d_logits, d_value = ppo_gradient(ahead.logits.numpy(), ahead.value.numpy(), rows, self.coefficients)
            ahead.pull(torch.from_numpy(d_logits), torch.from_numpy(d_value))
        return LossTerms(None, terms)

    def composed(self, module: ActorCritic, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss for any network and any actions, differentiable."""
        outputs, value = module(minibatch["obs"])
        mask, behaviour_logp = minibatch.get("action_mask"), minibatch["behaviour_logp"]
        logp, entropy_by_row = module.actor.log_prob_and_entropy(outputs, minibatch["action"], mask)
        clip_range = self.coefficients.clip_range
        policy = clipped_surrogate_loss(logp, behaviour_logp, minibatch["advantage"], clip_range).mean()
        values = self._value_loss(value, minibatch).mean()
        entropy = entropy_by_row.mean()
        total = policy + self.coefficients.value * values - self.coefficients.entropy * entropy
        kl = approximate_kl(logp.detach(), behaviour_logp).mean()
        terms = {"policy": policy.detach(), "value": values.detach(), "entropy": entropy.detach(), "kl": kl}
        return LossTerms(total, terms)

    def _value_loss(self, value: Tensor, minibatch: Mapping[str, Tensor]) -> Tensor:
        target, limit = minibatch["value_target"], self.coefficients.value_clip_range
        return (
            value_loss(value, target) if limit is None else clipped_value_loss(value, minibatch["value"], target, limit)
        )
