"""Inner losses and fitted critics against numbers worked out by hand and against plain loops."""

import math

import numpy as np
import pytest
import torch

from marlflow.losses.maml import fitted_values, likelihood_ratio_loss

# logp, behavior_logp, advantage, loss
TABLE = [
    (math.log(0.5), math.log(0.5), 2.0, -2.0),
    (math.log(0.6), math.log(0.3), 1.5, -3.0),
    (math.log(0.1), math.log(0.4), -4.0, 1.0),
    (math.log(0.9), math.log(0.3), 0.0, 0.0),
]


@pytest.mark.parametrize(("logp", "behavior_logp", "advantage", "expected"), TABLE)
def test_the_loss_is_minus_the_weighted_advantage(logp, behavior_logp, advantage, expected):
    found = likelihood_ratio_loss(*(torch.tensor([x], dtype=torch.float64) for x in (logp, behavior_logp, advantage)))
    assert found.item() == pytest.approx(expected)


def test_its_second_derivative_has_the_products_of_gradients():
    """Of one row with logp(x) = x at the policy that chose, every derivative is that of -exp: minus the advantage."""
    x = torch.tensor(math.log(0.5), dtype=torch.float64, requires_grad=True)
    loss = likelihood_ratio_loss(x, x.detach(), torch.tensor(3.0))
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == pytest.approx((-3.0, -3.0))


def test_a_critic_that_can_be_right_is():
    """Features [1, x], values 2 + 3 x: returns of two trajectories, of which the second goes on behind its end."""
    features = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0], [1.0, 5.0]], dtype=torch.float64)
    after = torch.tensor([[1.0, 9.0], [1.0, 9.0], [1.0, 4.0], [1.0, 4.0]], dtype=torch.float64)
    discount = torch.tensor([0.0, 0.0, 0.25, 0.5], dtype=torch.float64)
    # 2; 8; 5 - 0.25 * 14; 17 - 0.5 * 14
    returns = torch.tensor([2.0, 8.0, 1.5, 10.0], dtype=torch.float64)
    found = fitted_values(features, returns, discount, after, 0.0)
    np.testing.assert_allclose(found.numpy(), [2.0, 3.0], atol=1e-9)


def test_the_fit_is_the_least_of_all_by_a_plain_loop():
    random = np.random.default_rng(0)
    features, after = random.normal(size=(2, 12, 3))
    returns, discount = random.normal(size=12), random.uniform(0.0, 1.0, 12)

    def cost(weights):
        total = 0.0
        for row in range(12):
            value = sum(f * w for f, w in zip(features[row], weights, strict=True))
            later = sum(f * w for f, w in zip(after[row], weights, strict=True))
            total += (returns[row] + discount[row] * later - value) ** 2
        return total / 12 + 0.1 * sum(w * w for w in weights)

    tensors = (torch.from_numpy(array) for array in (features, returns, discount, after))
    best = fitted_values(*tensors, 0.1).numpy()
    assert all(cost(best) < cost(best + 1e-3 * random.normal(size=3)) for _ in range(50))
