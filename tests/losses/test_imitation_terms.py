import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from marlflow.losses import imitation


def test_cloning_against_a_table() -> None:
    logp = torch.tensor([0.5, 1.0, 0.25]).log()
    torch.testing.assert_close(imitation.behavioral_cloning_loss(logp), torch.tensor([math.log(2), 0.0, math.log(4)]))


def test_weighted_imitation_against_a_table() -> None:
    logp, advantage = torch.full((5,), -1.0), torch.tensor([0.0, 2.0, -2.0, 1000.0, -1000.0])
    loss = imitation.exponential_imitation_loss(logp, advantage, torch.tensor(2.0), beta=1.0, max_weight=20.0)
    torch.testing.assert_close(loss, torch.tensor([1.0, math.e, 1.0 / math.e, 20.0, 0.0]))


def test_without_beta_it_is_cloning() -> None:
    logp, advantage = torch.tensor([-0.1, -2.0]), torch.tensor([3.0, -7.0])
    found = imitation.exponential_imitation_loss(logp, advantage, torch.tensor(0.5), beta=0.0, max_weight=20.0)
    torch.testing.assert_close(found, imitation.behavioral_cloning_loss(logp))


def test_only_log_probabilities_have_a_gradient_and_it_is_the_weight() -> None:
    logp = torch.tensor([-0.1, -2.0], requires_grad=True)
    advantage, scale = torch.tensor([1.0, -1.0], requires_grad=True), torch.tensor(1.0, requires_grad=True)
    imitation.exponential_imitation_loss(logp, advantage, scale, beta=2.0, max_weight=20.0).sum().backward()
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, torch.tensor([-math.exp(2.0), -math.exp(-2.0)]))
    assert advantage.grad is None
    assert scale.grad is None


@given(
    rows=st.lists(st.tuples(st.floats(-5, 0, width=32), st.floats(-50, 50, width=32)), min_size=1, max_size=6),
    scale=st.floats(0.125, 64, width=32),
    beta=st.floats(0, 3),
    limit=st.floats(0.5, 50),
)
def test_weighted_imitation_against_a_loop(
    rows: list[tuple[float, float]], scale: float, beta: float, limit: float
) -> None:
    logp, advantage = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    found = imitation.exponential_imitation_loss(logp, advantage, torch.tensor(scale).double(), beta, limit)
    expected = [-min(math.exp(min(beta * a / scale, 700)), limit) * p for p, a in rows]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_a_moving_average_against_a_table_and_what_is_not_finite_leaves_it() -> None:
    before = torch.tensor(4.0)
    for now, expected in (([8.0, 16.0], 5.0), ([math.inf, 1.0], 4.0), ([math.nan], 4.0)):
        moved = imitation.moving_average(before, torch.tensor(now), rate=0.125)
        torch.testing.assert_close(moved, torch.tensor(expected))
