"""R2D2's loss (Kapturowski et al., 2019, https://openreview.net/forum?id=r1lyTjAqYX, section 2.3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learner.loss import LossTerms
from marlflow.losses.q_learning import (
    after_windows,
    mean_over_sequences,
    sequence_priority,
    squashed_double_q_target,
    td_error,
)
from marlflow.policy.recurrent_actors import RecurrentQNetwork


class R2D2Loss:
    """Half the squared TD error of n-step double Q-learning on a squashed scale, importance-weighted.

    A sequence's priority is `max_share` of its largest error plus the rest of its mean error.
    """

    def __init__(self, burn_in: int, squash_epsilon: float, max_share: float) -> None:
        self.burn_in = burn_in
        self.squash_epsilon = squash_epsilon
        self.max_share = max_share

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

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
                "q_mean": (q[:, :-1].mean(-1) * share).sum(1).mean(),
            }
            return LossTerms(total, terms, sequence_priority(size, trained, self.max_share))

    def _values(self, module: RecurrentQNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        q: Tensor = module(minibatch["obs"], minibatch["memory"], minibatch["valid"], self.burn_in)
        return q
