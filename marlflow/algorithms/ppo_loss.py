"""PPO's loss, and HAPPO's: PPO's, by policy, on advantages that LearnInOrder has multiplied by the factor M.

M is positive, so the clipped objective min(r M A, clip(r) M A) is PPO's of the advantage M A.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from marlflow.learner.loss import LossTerms
from marlflow.losses.policy_gradient import approximate_kl, clipped_surrogate_loss, clipped_value_loss, value_loss
from marlflow.policy.actor_critic import ActorCritic, StochasticActor, TeamActorCritic

_SETTINGS = {"value": "value_coefficient", "entropy": "entropy_coefficient"}
"""Coefficients that settings have other names for."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Clip range and term weights of PPO's loss; with `value_clip_range` None values are not clipped.

    A subclass may add coefficients; a schedule of the algorithm's setting of the same name sets them too.
    """

    clip_range: float = 0.2
    value: float = 0.5
    entropy: float = 0.01
    value_clip_range: float | None = None


class PPOLoss:
    """PPO's loss (equation 9): clipped surrogate, value loss, entropy bonus.

    `clip_range` is also known as clip_param and clip_coef.
    """

    def __init__(self, coefficients: Coefficients) -> None:
        self.coefficients = coefficients

    def set_schedule(self, values: Mapping[str, float]) -> None:
        named = {field.name: _SETTINGS.get(field.name, field.name) for field in fields(self.coefficients)}
        scheduled = {name: values[setting] for name, setting in named.items() if setting in values}
        self.coefficients = replace(self.coefficients, **scheduled)

    def __call__(self, module: ActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        outputs, value = module(minibatch["obs"], minibatch.get("central"))
        return self.of_rows(module.actor, module.value_error, outputs, value, minibatch, torch.mean)

    def of_rows(
        self,
        actor: StochasticActor,
        value_error: Callable[[Tensor], Tensor],
        outputs: Tensor,
        value: Tensor,
        rows: Mapping[str, Tensor],
        mean: Callable[[Tensor], Tensor],
    ) -> LossTerms:
        """Return the loss of `rows`, columns [N, ...], from network outputs; `mean` averages over rows.

        `value_error` converts squared errors to the critic's scale.
        """
        acting, values = self.of_actor(actor, outputs, rows, mean), self.of_critic(value_error, value, rows, mean)
        terms: dict[str, Any] = {**acting.terms, **values.terms}
        return LossTerms(acting.total + values.total, terms)

    def of_actor(
        self, actor: StochasticActor, outputs: Tensor, rows: Mapping[str, Tensor], mean: Callable[[Tensor], Tensor]
    ) -> LossTerms:
        """Return the actor's part of the loss: clipped surrogate and entropy bonus."""
        behavior_logp = rows["behavior_logp"]
        logp, entropy_by_row = actor.log_prob_and_entropy(outputs, rows["action"], rows.get("action_mask"))
        policy = mean(clipped_surrogate_loss(logp, behavior_logp, rows["advantage"], self.coefficients.clip_range))
        entropy = mean(entropy_by_row)
        kl = mean(approximate_kl(logp.detach(), behavior_logp))
        terms = {"policy": policy.detach(), "entropy": entropy.detach(), "kl": kl}
        return LossTerms(policy - self.coefficients.entropy * entropy, terms)

    def of_critic(
        self,
        value_error: Callable[[Tensor], Tensor],
        value: Tensor,
        rows: Mapping[str, Tensor],
        mean: Callable[[Tensor], Tensor],
    ) -> LossTerms:
        """Return the critic's part of the loss: the value loss."""
        values = mean(value_error(self._value_loss(value, rows)))
        return LossTerms(self.coefficients.value * values, {"value": values.detach()})

    def _value_loss(self, value: Tensor, minibatch: Mapping[str, Tensor]) -> Tensor:
        target, limit = minibatch["value_target"], self.coefficients.value_clip_range
        if limit is None:
            return value_loss(value, target)
        return clipped_value_loss(value, minibatch["value"], target, limit)


class FirstPolicyLoss(PPOLoss):
    """PPO's loss of the only policy and the critic."""

    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        return super().__call__(module.first, target_module, minibatch)


class ActorLoss(PPOLoss):
    """The clipped surrogate and entropy bonus of the actor of `policy`."""

    def __init__(self, policy: str, coefficients: Coefficients) -> None:
        super().__init__(coefficients)
        self.policy = policy

    def __call__(self, module: TeamActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:  # type: ignore[override]
        actor = module.actors[self.policy]
        return self.of_actor(actor, actor(minibatch["obs"]), minibatch, torch.mean)


class CriticLoss(PPOLoss):
    """The value loss of the critic of all policies."""

    def __call__(self, module: TeamActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:  # type: ignore[override]
        value = module.critic(minibatch["central"] if module.critic_input else minibatch["obs"])
        return self.of_critic(module.value_error, value, minibatch, torch.mean)
