"""SAC-Lagrangian: a critic of costs, and its weight in the actor's loss.

Ha et al., "Learning to walk in the real world with minimal human effort", 2020, arXiv:2002.08550, section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces as gym
from torch import Tensor

from marlflow.algorithms.cost_limit import cost_seed
from marlflow.base.spaces import Spaces
from marlflow.learner.loss import LossTerms
from marlflow.learner.multiplier import MULTIPLIER
from marlflow.losses.lagrangian import constrained_policy_loss
from marlflow.losses.sac import expected_soft_q_target, soft_q_target
from marlflow.losses.twin_critics import critics_loss
from marlflow.policy.critics import ActionCritics, BoxCritics
from marlflow.policy.torso import TorsoConfig


def cost_critic(spaces: Spaces, model: TorsoConfig, seed: int) -> ActionCritics | BoxCritics:
    """Build a critic of the costs that follow an action; an ensemble of one."""
    generator = torch.Generator().manual_seed(cost_seed(seed))
    if isinstance(spaces.action, gym.Box):
        return BoxCritics(spaces, model, 1, generator)
    return ActionCritics(spaces, model, 1, generator)


class MultipliedCosts:
    """The share of costs in the actor's loss, by the learner's multiplier."""

    def __init__(self) -> None:
        self._multiplier = 0.0

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the multiplier."""
        self._multiplier = values.get(MULTIPLIER, self._multiplier)

    def added_to(self, loss: Tensor, q_cost: Tensor) -> Tensor:
        """Return the actor's loss, [N], given the costs to come, [N]."""
        return constrained_policy_loss(loss, q_cost, self._multiplier)


class BoxCostLoss:
    """Squared errors to the cost value of a sampled next action, the one that the critics of rewards see."""

    def __init__(self, action_size: int) -> None:
        self.noise_per_row = 2 * action_size

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        with torch.no_grad():
            next_obs, noise = minibatch["next_obs"], minibatch["noise"][:, self.noise_per_row // 2 :]
            action, logp = module.actor.sample(next_obs, noise)
            q_t = target_module.cost_critic(next_obs, action)
            # Entropy costs nothing, so the temperature is 0.
            target = soft_q_target(minibatch["cost"], minibatch["discount"], q_t, logp, torch.zeros(()))
        q_tm1 = module.cost_critic(minibatch["obs"], module.actor.box.within(minibatch["action"]))
        total = (critics_loss(q_tm1, target) * minibatch["weight"]).mean()
        return LossTerms(total, {"cost_value": total.detach()})


class DiscreteCostLoss:
    """Squared errors to the cost value of the next observation, over its legal actions."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        with torch.no_grad():
            next_obs = minibatch["next_obs"]
            p, logp = module.probabilities(next_obs, minibatch.get("next_mask"))
            q_t, cost, discount = target_module.cost_critic(next_obs), minibatch["cost"], minibatch["discount"]
            target = expected_soft_q_target(cost, discount, q_t, p, logp, torch.zeros(()))
        q_tm1 = module.cost_critic(minibatch["obs"])
        taken = minibatch["action"].expand(len(q_tm1), -1).unsqueeze(-1)
        total = (critics_loss(q_tm1.gather(-1, taken).squeeze(-1), target) * minibatch["weight"]).mean()
        return LossTerms(total, {"cost_value": total.detach()})
