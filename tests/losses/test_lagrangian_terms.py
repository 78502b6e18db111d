"""Advantages and losses combined with costs, against literal numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marlflow.losses.policy_gradient import constrained_advantage, constrained_policy_loss


@pytest.mark.parametrize(
    ("advantage", "cost_advantage", "multiplier", "combined"),
    [(2.0, 1.0, 0.0, 2.0), (2.0, 1.0, 1.0, 0.5), (2.0, 1.0, 3.0, -0.25), (-1.0, -1.0, 1.0, 0.0), (0.0, 4.0, 1.0, -2.0)],
)
def test_advantages_are_in_units_of_reward_per_cost(
    advantage: float, cost_advantage: float, multiplier: float, combined: float
) -> None:
    found = constrained_advantage(torch.tensor([advantage]), torch.tensor([cost_advantage]), multiplier)
    assert found.tolist() == [combined]
    # The policy's loss is the negative of what an advantage is.
    loss = constrained_policy_loss(torch.tensor([-advantage]), torch.tensor([cost_advantage]), multiplier)
    assert loss.tolist() == [-combined]


def test_without_a_multiplier_not_a_bit_changes() -> None:
    random = np.random.default_rng(0)
    both = random.normal(size=(2, 1000)) * 10.0 ** random.integers(-20, 20, (2, 1000))
    advantage, cost_advantage = torch.from_numpy(both)
    assert constrained_advantage(advantage, cost_advantage, 0.0).tolist() == advantage.tolist()
