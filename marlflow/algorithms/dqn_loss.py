"""The (double) Q-learning loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learner.loss import LossTerms
from marlflow.losses.q_learning import double_q_learning_target, huber_loss, q_learning_target, td_error
from marlflow.policy.q import QNetwork


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
            terms = {"td": total.detach(), "td_error_mean": priorities.mean(), "q_mean": q_tm1.mean()}
        return LossTerms(total, terms, priorities)

    def priorities(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return each row's absolute TD error, [N]."""
        return self._error(module(minibatch["obs"]), module, target_module, minibatch).abs()

    def _error(
        self, q_tm1: Tensor, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]
    ) -> Tensor:
        return td_error(q_tm1, minibatch["action"], self._target(module, target_module, minibatch))

    def _target(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        next_obs, mask = minibatch["next_obs"], minibatch.get("next_mask")
        with torch.no_grad():
            q_t = target_module(next_obs)
            if not self.double:
                return q_learning_target(minibatch["reward"], minibatch["discount"], q_t, mask)
            # The online network selects the next action, the target network evaluates it.
            return double_q_learning_target(minibatch["reward"], minibatch["discount"], module(next_obs), q_t, mask)
