"""The loss of mixers (VDN, QMIX): Q-learning of a team's mixed value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from marlflow.learner.loss import LossTerms
from marlflow.losses.mixing import greedy_value, reward_spread, taken_value, team_target
from marlflow.losses.q_learning import huber_loss
from marlflow.policy.mixers import TeamQNetwork


class MixingLoss:
    """The Huber loss of the TD errors of a team's value, importance-weighted; priorities are absolute TD errors.

    With an infinite `huber_delta`, half the squared error. With `double`, the trained network chooses the agents' next
    actions, and the target network values them (van Hasselt et al., 2016, arXiv:1509.06461).
    """

    def __init__(self, double: bool = True, huber_delta: float = float("inf")) -> None:
        self.double, self.huber_delta = double, huber_delta

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.huber_delta = values.get("huber_delta", self.huber_delta)

    def __call__(self, module: TeamQNetwork, target_module: TeamQNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        present = module.present(minibatch)
        taken = _taken(module.values(minibatch), _actions(module, minibatch))
        q_tot_tm1 = module.mixed(taken, present, minibatch)
        error = self._target(module, target_module, minibatch) - q_tot_tm1
        total = (huber_loss(error, self.huber_delta) * minibatch["weight"]).mean()
        with torch.no_grad():
            return LossTerms(total, self._terms(total, error, q_tot_tm1, present, module, minibatch), error.abs())

    def _target(self, module: TeamQNetwork, target_module: TeamQNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            q_t_value = target_module.values(minibatch, "next_")
            q_t_selector = module.values(minibatch, "next_") if self.double else q_t_value
            masks = [minibatch.get(f"{policy}:next_mask") for policy in module.policies]
            greedy = [greedy_value(*each) for each in zip(q_t_selector, q_t_value, masks, strict=True)]
            present = module.present(minibatch, "next_")
            q_tot_t = target_module.mixed(torch.cat(greedy, 1), present, minibatch, "next_")
            return team_target(minibatch["reward"] / module.reward_unit, minibatch["discount"], q_tot_t)

    def _terms(
        self,
        total: Tensor,
        error: Tensor,
        q_tot: Tensor,
        present: Tensor,
        module: TeamQNetwork,
        minibatch: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        rewards = torch.cat([minibatch[f"{policy}:reward"] for policy in module.policies], 1)
        return {
            "td": total.detach(),
            "td_error_mean": error.abs().mean(),
            "q_tot_mean": (q_tot.detach() * module.reward_unit).mean(),
            "reward_spread": reward_spread(rewards, present).mean(),
        }


def _actions(module: TeamQNetwork, minibatch: Mapping[str, Tensor]) -> list[Tensor]:
    return [minibatch[f"{policy}:action"] for policy in module.policies]


def _taken(values: Sequence[Tensor], actions: Sequence[Tensor]) -> Tensor:
    return torch.cat([taken_value(q, action) for q, action in zip(values, actions, strict=True)], 1)
