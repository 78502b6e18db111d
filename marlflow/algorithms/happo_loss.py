"""HAPPO's losses: PPO's, by policy, on advantages that LearnInOrder has multiplied by the factor M.

M is positive, so the clipped objective min(r M A, clip(r) M A) is PPO's of the advantage M A.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.learner.loss import LossTerms
from marlflow.policy.actor_critic import TeamActorCritic


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
