import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.box import GaussianActor, log_mass_below
from tests.policy.row_random import row_random

BOX = spaces.Box(np.array([0.0, -3.0, -np.inf], np.float32), np.array([1.0, 5.0, np.inf], np.float32))


def actor() -> GaussianActor:
    found = ActorCritic(Spaces(spaces.Box(-1.0, 1.0, (2,)), BOX), mf.MLP((8,)), mf.MLP((8,)), seed=0).actor
    assert isinstance(found, GaussianActor)
    with torch.no_grad():
        found.log_std.copy_(torch.tensor([0.1, -0.2, 0.3]))
    return found


def naive_log_prob(mean: list[float], log_std: list[float], action: list[float]) -> float:
    total = 0.0
    bounds = [(0.0, 1.0), (-3.0, 5.0), (-math.inf, math.inf)]
    for m, s, a, (low, high) in zip(mean, log_std, action, bounds, strict=True):
        center, scale = (0.0, 1.0) if math.isinf(low) else ((low + high) / 2, (high - low) / 2)
        z = ((a - center) / scale - m) / math.exp(s)
        if a <= low:
            total += math.log(0.5 * math.erfc(-z / math.sqrt(2.0)))
        elif a >= high:
            total += math.log(0.5 * math.erfc(z / math.sqrt(2.0)))
        else:
            total += -0.5 * z * z - s - 0.5 * math.log(2.0 * math.pi)
    return total


def test_actions_are_in_the_box_and_their_likelihood_is_exact() -> None:
    acting, rows = actor(), 200
    obs = np.random.default_rng(0).standard_normal((rows, 2)).astype(np.float32)
    acted = acting.act(obs, None, None, "explore", row_random(rows))
    assert acted.action.shape == (rows, 3)
    assert acted.action.dtype == acted.behavior_logp.dtype == np.float32
    assert ((acted.action >= BOX.low) & (acted.action <= BOX.high)).all()
    clipped = (acted.action[:, :2] == BOX.low[:2]) | (acted.action[:, :2] == BOX.high[:2])
    assert 0.1 < clipped.mean() < 0.9
    with torch.no_grad():
        mean = acting(torch.from_numpy(obs))
    expected = [
        naive_log_prob(m, acting.log_std.tolist(), a) for m, a in zip(mean.tolist(), acted.action.tolist(), strict=True)
    ]
    np.testing.assert_allclose(acted.behavior_logp, expected, rtol=1e-4, atol=1e-4)


def test_gradients_are_finite_at_the_bounds() -> None:
    mean = torch.zeros(2, 3, requires_grad=True)
    logp, entropy = actor().log_prob_and_entropy(mean, torch.tensor([[0.0, 5.0, 1.0], [1.0, -3.0, 0.0]]), None)
    (logp.sum() + entropy.sum()).backward()
    assert mean.grad is not None
    assert bool(torch.isfinite(mean.grad).all())
    assert mean.grad[0, 0] < 0.0 < mean.grad[0, 1]


def test_entropy_is_the_gaussians() -> None:
    _, entropy = actor().log_prob_and_entropy(torch.zeros(4, 3), torch.zeros(4, 3), None)
    expected = sum(0.5 * math.log(2.0 * math.pi * math.e) + s for s in (0.1, -0.2, 0.3))
    assert entropy.tolist() == pytest.approx([expected] * 4, rel=1e-5)


def test_greedy_is_the_mean() -> None:
    acting = actor()
    obs = np.zeros((1, 2), np.float32)
    acted = acting.act(obs, None, None, "greedy", mf.RowRandom(np.zeros(1, np.uint64), np.zeros(1)))
    np.testing.assert_allclose(acted.action, [[0.5, 1.0, 0.0]], atol=1e-6)


@pytest.mark.parametrize("high", [[0.0, 1.0], [0.0, np.inf]])
def test_a_component_with_one_value_is_refused(high: list[float]) -> None:
    fixed = spaces.Box(np.array([0.0, -1.0], np.float32), np.array(high, np.float32))
    with pytest.raises(mf.ConfigInvalid, match=r"every component can vary, not .*: drop the fixed ones, by a wrapper"):
        ActorCritic(Spaces(spaces.Box(-1.0, 1.0, (2,)), fixed), mf.MLP((8,)), mf.MLP((8,)), seed=0)


def test_the_mass_below_and_its_gradient_hold_far_out() -> None:
    noise = torch.tensor([5.0, 0.0, -1.0, -10.0, -19.9, -20.1, -1e3, -1e4, -3e4], requires_grad=True)
    found = log_mass_below(noise)
    found.sum().backward()
    exact = noise.detach().double().requires_grad_()
    expected = torch.special.log_ndtr(exact)
    expected.sum().backward()
    np.testing.assert_allclose(found.detach(), expected.detach(), rtol=1e-6)
    assert noise.grad is not None
    np.testing.assert_allclose(noise.grad, exact.grad, rtol=3e-5)
