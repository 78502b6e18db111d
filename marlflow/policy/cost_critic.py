"""A critic of costs, for limits on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import CriticInput
from marlflow.policy.actor_critic import critic_body
from marlflow.policy.dense import linear, through
from marlflow.policy.normalized import ReturnScale, in_units_of
from marlflow.policy.torso import TorsoConfig


class CostCritic(nn.Module):
    """Estimates costs to come, with layers of its own; it sees what the critic of rewards sees.

    `normalize_values`: value normalization by Pop-Art (see ReturnScale).
    """

    def __init__(
        self, spaces: Spaces, seen: CriticInput | None, model: TorsoConfig, normalize_values: bool, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.torso, features = critic_body(spaces, seen, model, generator)
        self.head = linear(features, 1, 1.0, generator)
        self.returns = ReturnScale(self.head, "cost_value_target") if normalize_values else None

    def forward(self, obs: Tensor) -> Tensor:
        """Return the costs to come, [N], of `obs` [N, ...], or of rows of `central`."""
        return in_units_of(self.returns, through(self.torso, self.head, obs).squeeze(-1))

    def value_error(self, squared: Tensor) -> Tensor:
        """Convert squared value errors to the squared units of the head."""
        return squared if self.returns is None else squared / self.returns.variance
