"""R2D2's loss (Kapturowski et al., 2019, https://openreview.net/forum?id=r1lyTjAqYX, section 2.3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learn.loss import LossTerms
from marlflow.losses.q_learning import td_error
from marlflow.losses.recurrent_q_learning import (
    after_windows,
    mean_over_sequences,
    sequence_priority,
    squashed_double_q_target,
)
from marlflow.policy.recurrent_q import RecurrentQNetwork


class R2D2Loss:
    """Half the squared error of n-step double Q-learning on a squashed scale, weighted by the replay.

    Priorities are `max_share` times a sequence's largest error, and the mean of its errors for the rest.
    """

    def __init__(self, burn_in: int, squash_epsilon: float, max_share: float) -> None:
        self.burn_in, self.squash_epsilon, self.max_share = burn_in, squash_epsilon, max_share

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of this loss is scheduled."""

    def __call__(
        self, module: RecurrentQNetwork, target_module: RecurrentQNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        """The loss of a minibatch of SequenceTransitions."""
        trained, following = minibatch["trained"], minibatch["following"]
        q = self._values(module, minibatch)
        with torch.no_grad():
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
            share = trained / trained.sum(1, keepdim=True)  # of a row in its sequence
            terms = {
                "td": total.detach(),
                "td_error_mean": (size * share).sum(1).mean(),
                "q_mean": (q[:, :-1].mean(-1) * share).sum(1).mean(),
            }
            return LossTerms(total, terms, sequence_priority(size, trained, self.max_share))

    def _values(self, module: RecurrentQNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        q: Tensor = module(minibatch["obs"], minibatch["memory"], minibatch["present"], self.burn_in)
        return q
