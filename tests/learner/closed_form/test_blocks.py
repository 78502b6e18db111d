"""DQN's gradients, terms and priorities of many rows, taken in blocks, are those of autograd over all rows."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marlflow.algorithms.dqn_loss import DQNLoss
from marlflow.base.spaces import Spaces
from marlflow.learner.closed_form import blocks
from marlflow.policy.q import QNetwork, QPass
from marlflow.policy.torso import MLP


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [20, 21, 59, 60])
def test_blocks_add_up_to_all_rows(count: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = QNetwork(Spaces(spaces.Box(-1.0, 1.0, (5,)), spaces.Discrete(3)), MLP((7, 6)), dueling=False, seed=0)
    target = copy.deepcopy(module)
    rng = np.random.default_rng(count)
    rows = {name: torch.from_numpy(rng.standard_normal((count, 5)).astype(np.float32)) for name in ("obs", "next_obs")}
    rows |= {name: torch.from_numpy(rng.random(count).astype(np.float32)) for name in ("reward", "discount", "weight")}
    rows["action"] = torch.from_numpy(rng.integers(0, 3, count))
    if masked:
        rows["next_mask"] = torch.from_numpy(np.stack([[True, *legal] for legal in rng.random((count, 2)) < 0.5]))
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(0.1)
    loss = DQNLoss(huber_delta=0.3)
    expected = loss(module, target, rows)
    assert expected.total is not None
    expected.total.backward()
    gradients = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 99.0)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 20)
    assert QPass.fits(module)
    found = loss.in_closed_form(module, target, rows)
    assert found is not None
    assert {name: float(term) for name, term in found.terms.items()} == pytest.approx(
        {name: float(term) for name, term in expected.terms.items()}, rel=1e-5, abs=1e-6
    )
    torch.testing.assert_close(found.priorities, expected.priorities)
    written = [parameter.grad for parameter in module.parameters()]
    torch.testing.assert_close(written, gradients, atol=1e-6, rtol=1e-5)
