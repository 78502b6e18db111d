"""C51's projection, target and divergence: literal tables, and loops over rows and atoms."""

import math

import numpy as np
import torch

from marlflow.losses import q_learning

SUPPORT = torch.tensor([-1.0, 0.0, 1.0, 2.0])


def naive_projection(reward: float, discount: float, probability: list[float], support: list[float]) -> list[float]:
    """Algorithm 1 of the paper, atom by atom, in float64."""
    low, high, gap = support[0], support[-1], support[1] - support[0]
    projected = [0.0] * len(support)
    for mass, atom in zip(probability, support, strict=True):
        b = (min(max(reward + discount * atom, low), high) - low) / gap
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            projected[lower] += mass
        else:
            projected[lower] += mass * (upper - b)
            projected[upper] += mass * (b - lower)
    return projected


def test_projection_against_a_table() -> None:
    projected = q_learning.categorical_projection(
        torch.tensor([0.0, 0.5, 10.0, 0.25, -10.0]),
        torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0]),
        torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 5),
        SUPPORT,
    )
    expected = [
        [0.1, 0.2, 0.3, 0.4],
        [0.05, 0.15, 0.25, 0.55],
        [0.0, 0.0, 0.0, 1.0],
        [0.0, 0.75, 0.25, 0.0],
        [1.0, 0.0, 0.0, 0.0],
    ]
    torch.testing.assert_close(projected, torch.tensor(expected))


def test_projection_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    support = np.linspace(-3.0, 7.0, 11)
    reward, discount = rng.normal(0.0, 4.0, 40), rng.choice([0.0, 0.5, 0.99, 1.0], 40)
    reward[:5] = [0.0, 1.0, -3.0, 7.0, 2.0]
    probability = rng.dirichlet(np.ones(11), 40)
    found = q_learning.categorical_projection(*map(torch.from_numpy, (reward, discount, probability, support)))
    for row in range(40):
        expected = naive_projection(reward[row], discount[row], probability[row].tolist(), support.tolist())
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-12)


def test_projection_keeps_the_mean_of_what_stays_within() -> None:
    generator = torch.Generator().manual_seed(1)
    probability = torch.rand(9, 21, generator=generator, dtype=torch.float64).softmax(-1)
    support = torch.linspace(-10.0, 10.0, 21, dtype=torch.float64)
    reward, discount = torch.linspace(-1.0, 1.0, 9, dtype=torch.float64), torch.full((9,), 0.7, dtype=torch.float64)
    projected = q_learning.categorical_projection(reward, discount, probability, support)
    torch.testing.assert_close(projected.sum(-1), torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(projected @ support, reward + discount * (probability @ support))


def test_the_target_is_of_the_best_legal_action() -> None:
    logits = torch.log(torch.tensor([[[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7], [0.1, 0.7, 0.1, 0.1]]]))
    selector = torch.tensor([[1.0, 3.0, 2.0]])
    reward, discount = torch.tensor([0.0]), torch.tensor([1.0])
    best = q_learning.categorical_q_learning_target(reward, discount, selector, logits, SUPPORT, None)
    torch.testing.assert_close(best, torch.tensor([[0.1, 0.1, 0.1, 0.7]]))
    mask = torch.tensor([[True, False, True]])
    legal = q_learning.categorical_q_learning_target(reward, discount, selector, logits, SUPPORT, mask)
    torch.testing.assert_close(legal, torch.tensor([[0.1, 0.7, 0.1, 0.1]]))


def test_divergence_against_a_table_and_a_loop() -> None:
    target = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    chosen = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [0.2, 0.3, 0.5]])
    found = q_learning.categorical_divergence(chosen.log() + 3.0, target)
    torch.testing.assert_close(found, torch.tensor([math.log(2.0), math.log(2.0), 0.0]), atol=1e-6, rtol=1e-6)
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(5), 8), rng.dirichlet(np.ones(5), 8)
    expected = [sum(a * math.log(a / b) for a, b in zip(*row, strict=True)) for row in zip(p, q, strict=True)]
    found = q_learning.categorical_divergence(torch.from_numpy(np.log(q)), torch.from_numpy(p))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_the_gradient_of_the_divergence_is_that_of_the_cross_entropy() -> None:
    target = torch.tensor([[0.2, 0.0, 0.8]])
    logits = torch.tensor([[0.3, -1.0, 0.5]], requires_grad=True)
    q_learning.categorical_divergence(logits, target).sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, logits.detach().softmax(-1) - target)


def test_atoms_of_one_action_per_row() -> None:
    logits = torch.arange(12.0).reshape(2, 3, 2)
    torch.testing.assert_close(
        q_learning.atoms_of(logits, torch.tensor([2, 0])), torch.tensor([[4.0, 5.0], [6.0, 7.0]])
    )
