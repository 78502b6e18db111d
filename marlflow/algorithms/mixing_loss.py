"""The losses of mixers (VDN, QMIX): Q-learning of a team's mixed value; if recurrent, by Peng's lambda returns."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learner.loss import LossTerms
from marlflow.losses.mixing import greedy_value, peng_lambda_return, reward_spread, team_target
from marlflow.losses.q_learning import huber_loss, mean_over_sequences, sequence_priority, taken_value
from marlflow.policy.mixers import RecurrentTeamQNetwork, TeamQNetwork
from marlflow.policy.normalized import reward_unit


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
        actions = [minibatch[f"{policy}:action"] for policy in module.policies]
        taken = torch.cat([taken_value(*each) for each in zip(module.values(minibatch), actions, strict=True)], 1)
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
            return team_target(minibatch["reward"] / reward_unit(module), minibatch["discount"], q_tot_t)

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
            "q_tot_mean": (q_tot.detach() * reward_unit(module)).mean(),
            "reward_spread": reward_spread(rewards, present).mean(),
        }


class RecurrentMixingLoss:
    """The Huber loss of the errors of a team's value from lambda returns, on sequences, importance-weighted.

    Memory is refreshed on `burn_in` steps first. A sequence's priority is `max_share` of its largest error plus the
    rest of its mean error (Kapturowski et al., 2019, https://openreview.net/forum?id=r1lyTjAqYX, section 2.3).
    """

    def __init__(
        self,
        burn_in: int,
        td_lambda: float,
        double: bool = True,
        huber_delta: float = float("inf"),
        max_share: float = 0.9,
    ) -> None:
        self.burn_in, self.td_lambda, self.double = burn_in, td_lambda, double
        self.huber_delta, self.max_share = huber_delta, max_share

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.huber_delta = values.get("huber_delta", self.huber_delta)

    def __call__(
        self, module: RecurrentTeamQNetwork, target_module: RecurrentTeamQNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        trained = minibatch["trained"]
        # One unroll gives the values to train and, detached, the values that select the next actions.
        q = module.unrolled(minibatch, self.burn_in)
        present = module.present_after(minibatch, self.burn_in)
        actions = [minibatch[f"{policy}:action"] for policy in module.policies]
        taken = torch.cat([taken_value(own[:, :-1], action) for own, action in zip(q, actions, strict=True)], 2)
        q_tot = module.mixed_steps(taken, present[:, :-1], minibatch, self.burn_in)
        reward = minibatch["reward"] / reward_unit(module)
        target = self._target([own.detach() for own in q], present, target_module, minibatch, reward)
        # Steps that do not exist may hold any number.
        error = torch.where(trained, target - q_tot, 0.0)
        total = mean_over_sequences(huber_loss(error, self.huber_delta), trained, minibatch["weight"])
        with torch.no_grad():
            terms = _terms(total, error, q_tot, present[:, :-1], module, minibatch)
            return LossTerms(total, terms, sequence_priority(error.abs(), trained, self.max_share))

    def _target(
        self,
        q: list[Tensor],
        present: Tensor,
        target_module: RecurrentTeamQNetwork,
        minibatch: Mapping[str, Tensor],
        reward: Tensor,
    ) -> Tensor:
        trained = minibatch["trained"]
        with torch.no_grad():
            q_t_value = target_module.unrolled(minibatch, self.burn_in)
            q_t_selector = q if self.double else q_t_value
            masks = [minibatch.get(f"{policy}:action_mask") for policy in target_module.policies]
            greedy = torch.cat([greedy_value(*each) for each in zip(q_t_selector, q_t_value, masks, strict=True)], 2)
            q_tot_t = target_module.mixed_steps(greedy[:, 1:], present[:, 1:], minibatch, self.burn_in + 1)
            # The last trained step: the one before the first that does not exist, or the last of all.
            goes_on = torch.nn.functional.pad(trained[:, 1:], (0, 1))
            return peng_lambda_return(reward, minibatch["discount"], q_tot_t, ~goes_on, self.td_lambda)


def _terms(
    total: Tensor,
    error: Tensor,
    q_tot: Tensor,
    present: Tensor,
    module: RecurrentTeamQNetwork,
    minibatch: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    trained = minibatch["trained"]
    # Each step's share of its sequence, so that metrics weigh sequences equally.
    share = trained / trained.sum(1, keepdim=True)
    rewards = torch.cat([minibatch[f"{policy}:reward"] for policy in module.policies], 2)
    spread = reward_spread(rewards.flatten(0, 1), present.flatten(0, 1)).view_as(error)
    return {
        "td": total.detach(),
        "td_error_mean": (error.abs() * share).sum(1).mean(),
        "q_tot_mean": (q_tot.detach() * reward_unit(module) * share).sum(1).mean(),
        "reward_spread": (spread * share).sum(1).mean(),
    }
