"""The log-probability of clipped Gaussians, and PPO's gradients, in closed form are those of autograd."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.spaces import Spaces
from marlflow.learner.closed_form import blocks
from marlflow.learner.closed_form.gaussian import GaussianRows, log_prob
from marlflow.policy.actor_critic import ActorCritic, DensePass
from marlflow.policy.torso import MLP

SEEN = spaces.Box(-1.0, 1.0, (5,))
# Bounded on both sides, on one, and on none; clipped to its range, with another center and scale.
BOXES = [
    spaces.Box(-1.0, 1.0, (2,)),
    spaces.Box(np.array([-3.0, 0.0, -np.inf], np.float32), np.array([1.0, 0.5, np.inf], np.float32)),
    spaces.Box(0.0, np.inf, (1, 2)),
]


def test_a_literal_table() -> None:
    """Standard normals at -1 (clipped), 0, and 1 (clipped): Phi(-1), the density at 0, Phi(-1)."""
    action = np.array([[-1.0], [0.0], [1.0]], np.float32)
    rows = GaussianRows(action, action <= -1.0, action >= 1.0)
    logp, by_mean, by_log_std = log_prob(np.zeros((3, 1), np.float32), np.zeros(1, np.float32), rows)
    tail = 0.5 * math.erfc(1.0 / math.sqrt(2.0))
    hazard = math.exp(-0.5) / math.sqrt(2.0 * math.pi) / tail
    np.testing.assert_allclose(logp, [math.log(tail), -0.5 * math.log(2.0 * math.pi), math.log(tail)], rtol=1e-6)
    np.testing.assert_allclose(by_mean, [[-hazard, 0.0, hazard]], rtol=1e-6)
    np.testing.assert_allclose(by_log_std, [[hazard, -1.0, hazard]], rtol=1e-6)


def trained(module: ActorCritic) -> dict[str, torch.nn.Parameter]:
    # Not the running statistics of returns.
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def module_of(box: spaces.Box, shared: bool, normalized: bool, seed: int) -> ActorCritic:
    module = ActorCritic(Spaces(SEEN, box), MLP((7, 6)), None if shared else MLP((8, 6)), seed, normalized)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trained(module).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
            parameter.grad = torch.full_like(parameter, 99.0)
    return module


def minibatch(module: ActorCritic, box: spaces.Box, count: int, seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    columns = rng.standard_normal((4, count)).astype(np.float32)
    action = np.clip(1.5 * rng.standard_normal((count, *box.shape)), box.low, box.high).astype(np.float32)
    rows = dict(
        zip(("behavior_logp", "advantage", "value_target", "value"), map(torch.from_numpy, columns), strict=True)
    )
    rows |= {"obs": torch.from_numpy(rng.standard_normal((count, 5)).astype(np.float32))}
    rows |= {"action": torch.from_numpy(action)}
    with torch.no_grad():
        # Ratios on both sides of the clip range.
        logp, _ = module.actor.log_prob_and_entropy(module(rows["obs"])[0], rows["action"], None)
    rows["behavior_logp"] = logp + 0.3 * rows["behavior_logp"]
    return rows


@pytest.mark.parametrize("box", BOXES, ids=str)
@pytest.mark.parametrize(("shared", "normalized"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("value_clip_range", [None, 0.3])
@pytest.mark.parametrize("block_rows", [2_048, 20], ids=["one block", "blocks"])
def test_gradients_are_those_of_autograd(
    box: spaces.Box,
    shared: bool,
    normalized: bool,
    value_clip_range: float | None,
    block_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", block_rows)
    module = module_of(box, shared, normalized, seed=3)
    rows = minibatch(module, box, 47, seed=4)
    assert DensePass.fits(module)
    loss = PPOLoss(Coefficients(value_clip_range=value_clip_range))
    ours = loss.in_closed_form(module, None, rows)
    written = [parameter.grad.clone() for parameter in trained(module).values() if parameter.grad is not None]
    module.zero_grad()
    expected = loss(module, None, rows)
    assert ours is not None
    assert ours.total is None
    assert expected.total is not None
    expected.total.backward()
    assert {name: float(term) for name, term in ours.terms.items()} == pytest.approx(
        {name: float(term) for name, term in expected.terms.items()}, rel=1e-4, abs=1e-5
    )
    for (name, parameter), gradient in zip(trained(module).items(), written, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=2e-6, rtol=1e-4, msg=lambda text, at=name: at + text)


@pytest.mark.parametrize("count", [20, 21, 59, 60])
def test_blocks_of_discrete_actions_add_up_to_all_rows(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ActorCritic(Spaces(SEEN, spaces.Discrete(3)), MLP((7,)), MLP((6,)), 0)
    rng = np.random.default_rng(count)
    floats = rng.standard_normal((4, count)).astype(np.float32)
    rows = dict(
        zip(("behavior_logp", "advantage", "value_target", "value"), map(torch.from_numpy, floats), strict=True)
    )
    rows |= {"obs": torch.from_numpy(rng.standard_normal((count, 5)).astype(np.float32))}
    rows |= {"action": torch.from_numpy(rng.integers(0, 2, count))}
    # Action 2 is illegal in some rows.
    rows |= {"action_mask": torch.from_numpy(np.stack([[True, True, legal] for legal in rng.random(count) < 0.5]))}
    found = []
    for block_rows in (2_048, 20):
        monkeypatch.setattr(blocks, "BLOCK_ROWS", block_rows)
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 99.0)
        loss = PPOLoss(Coefficients()).in_closed_form(module, None, rows)
        assert loss is not None
        found.append((loss.terms, [parameter.grad for parameter in module.parameters()]))
    (whole, gradients), (summed, of_blocks) = found
    assert whole == pytest.approx(summed, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(of_blocks, gradients, atol=1e-6, rtol=1e-5)
