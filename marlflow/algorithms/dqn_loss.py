"""The losses of (double) Q-learning: of DQN, of distributions (C51), and of sequences (R2D2).

C51: Bellemare et al., 2017, arXiv:1707.06887. R2D2: Kapturowski et al., 2019,
https://openreview.net/forum?id=r1lyTjAqYX, section 2.3.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learner.loss import LossTerms, Unscheduled
from marlflow.losses.q_learning import (
    after_windows,
    atoms_of,
    categorical_divergence,
    categorical_q_learning_target,
    double_q_learning_target,
    huber_loss,
    mean_over_sequences,
    q_learning_target,
    sequence_priority,
    squashed_double_q_target,
    taken_value,
    td_error,
)
from marlflow.policy.normalized import reward_unit
from marlflow.policy.q import DistributionalQNetwork, QNetwork
from marlflow.policy.recurrent import RecurrentQNetwork


class DQNLoss:
    """The Huber loss of (double) Q-learning's TD errors, importance-weighted; priorities are absolute TD errors."""

    def __init__(self, double: bool = True, huber_delta: float = 1.0) -> None:
        self.double, self.huber_delta = double, huber_delta

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.huber_delta = values.get("huber_delta", self.huber_delta)

    def __call__(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        q_tm1 = module(minibatch["obs"])
        error = self._error(q_tm1, module, target_module, minibatch)
        total = (huber_loss(error, self.huber_delta) * minibatch["weight"]).mean()
        with torch.no_grad():
            priorities = error.abs()
            q_mean = (taken_value(q_tm1, minibatch["action"]) * reward_unit(module)).mean()
            terms = {"td": total.detach(), "td_error_mean": priorities.mean(), "q_mean": q_mean}
        return LossTerms(total, terms, priorities)

    def priorities(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return each row's absolute TD error, [N]."""
        return self._error(module(minibatch["obs"]), module, target_module, minibatch).abs()

    def _error(
        self, q_tm1: Tensor, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]
    ) -> Tensor:
        return td_error(q_tm1, minibatch["action"], self._target(module, target_module, minibatch))

    def _target(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        next_obs, mask, discount = minibatch["next_obs"], minibatch.get("next_mask"), minibatch["discount"]
        with torch.no_grad():
            reward, q_t = minibatch["reward"] / reward_unit(module), target_module(next_obs)
            if not self.double:
                return q_learning_target(reward, discount, q_t, mask)
            # The online network selects the next action, the target network evaluates it.
            return double_q_learning_target(reward, discount, module(next_obs), q_t, mask)


class C51Loss(Unscheduled):
    """The KL divergence between (double) Q-learning's target and predicted distributions, importance-weighted.

    Priorities are the divergences (Hessel et al., 2018, arXiv:1710.02298).
    """

    def __init__(self, double: bool = True) -> None:
        self.double = double

    def __call__(
        self, module: DistributionalQNetwork, target_module: DistributionalQNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        logits_tm1 = module.logits(minibatch["obs"])
        divergence = self._divergence(logits_tm1, module, target_module, minibatch)
        total = (divergence * minibatch["weight"]).mean()
        with torch.no_grad():
            # Rounding can make a divergence slightly negative.
            priorities = divergence.clamp(min=0.0)
            q_mean = module.head.expected(atoms_of(logits_tm1, minibatch["action"])).mean()
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


class R2D2Loss(Unscheduled):
    """Half the squared TD error of n-step double Q-learning on a squashed scale, importance-weighted.

    A sequence's priority is `max_share` of its largest error plus the rest of its mean error.
    """

    def __init__(self, burn_in: int, squash_epsilon: float, max_share: float) -> None:
        self.burn_in = burn_in
        self.squash_epsilon = squash_epsilon
        self.max_share = max_share

    def __call__(
        self, module: RecurrentQNetwork, target_module: RecurrentQNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        trained, following = minibatch["trained"], minibatch["following"]
        # One unroll gives the values to train and, detached, the values that select the next actions.
        q = self._values(module, minibatch)
        with torch.no_grad():
            # The target network burns in its own memory from the stored one.
            q_target, mask = self._values(target_module, minibatch), minibatch.get("mask")
            target = squashed_double_q_target(
                minibatch["reward"],
                minibatch["discount"],
                after_windows(q.detach(), following),
                after_windows(q_target, following),
                None if mask is None else after_windows(mask, following),
                self.squash_epsilon,
            )
        error = td_error(q[:, :-1], minibatch["action"], target)
        total = mean_over_sequences(0.5 * error.square(), trained, minibatch["weight"])
        with torch.no_grad():
            size = error.abs()
            # Each row's share of its sequence, so that metrics weigh sequences equally.
            share = trained / trained.sum(1, keepdim=True)
            terms = {
                "td": total.detach(),
                "td_error_mean": (size * share).sum(1).mean(),
                "q_mean": (taken_value(q[:, :-1], minibatch["action"]) * share).sum(1).mean(),
            }
            return LossTerms(total, terms, sequence_priority(size, trained, self.max_share))

    def _values(self, module: RecurrentQNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        q: Tensor = module(minibatch["obs"], minibatch["memory"], minibatch["valid"], self.burn_in)
        return q
