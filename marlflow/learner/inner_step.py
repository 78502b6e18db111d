"""The step by which a policy adapts to a task: the same where it acts and where it learns to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from marlflow.losses.maml import likelihood_ratio_loss
from marlflow.policy.adapted import FlatNetwork

Order: TypeAlias = Literal["first", "second"]


@dataclass(frozen=True, slots=True)
class InnerStep:
    """One policy gradient step of `learning_rate` (Finn et al., 2017, arXiv:1703.03400, equation 1).

    Of the "second" order it can be differentiated; of the "first" it counts as if it did not depend on where it began.
    """

    learning_rate: float
    order: Order

    def __call__(self, network: FlatNetwork, parameters: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The parameters [T, P] after one step each on `rows` [T, N, ...] of its own.

        `rows` has `obs`, `action`, `behavior_logp`, `advantage`, `action_mask` if there is one, and `weight`, by which
        the losses of each are added up.
        """
        logp = network.log_prob(parameters, rows)
        by_row = likelihood_ratio_loss(logp, rows["behavior_logp"], rows["advantage"]) * rows["weight"]
        # Of all at once: nobody's loss depends on another's parameters.
        (gradient,) = torch.autograd.grad(by_row.sum(), parameters, create_graph=self.order == "second")
        return parameters - self.learning_rate * (network.learns * gradient)
