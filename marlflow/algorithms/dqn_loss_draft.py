"""DQN's loss for a learner: the Huber loss of double Q-learning's errors, weighted by the replay."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learn.learner import LossTerms
from marlflow.losses.q_learning import double_q_learning_target, huber_loss, q_learning_target, td_error
from marlflow.policy.q import QNetwork


class DQNLoss:
    """Of Mnih et al. (2015), with the double Q-learning of van Hasselt et al. (2016) by choice."""

    def __init__(self, double: bool = True, huber_delta: float = 1.0) -> None:
        self.double, self.huber_delta = double, huber_delta

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of this loss is scheduled."""

    def __call__(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of a minibatch of `Transitions`; the priorities are the sizes of the errors."""
        q_tm1 = module(minibatch["obs"])
        target = self._target(module, target_module, minibatch)
        error = td_error(q_tm1, minibatch["action"], target)
        total = (huber_loss(error, self.huber_delta) * minibatch["weight"]).mean()
        with torch.no_grad():
            priorities = error.abs()
            terms = {"td": total.detach(), "td_error_mean": priorities.mean(), "q_mean": q_tm1.mean()}
        return LossTerms(total, terms, priorities)

    def _target(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        next_obs, mask = minibatch["next_obs"], minibatch.get("next_mask")
        with torch.no_grad():
            q_t = target_module(next_obs)
            if not self.double:
                return q_learning_target(minibatch["reward"], minibatch["discount"], q_t, mask)
            return double_q_learning_target(minibatch["reward"], minibatch["discount"], module(next_obs), q_t, mask)
