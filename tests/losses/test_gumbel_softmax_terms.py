"""The straight-through Gumbel-softmax, against tables, loops, and the probabilities that it must have."""

import math

import torch

from marlflow.losses.deterministic_policy_gradient import gumbel_noise, one_hot_best, straight_through_sample
from marlflow.losses.mixing import mean_over_present, row_means

LOGITS = torch.tensor([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [3.0, 3.0, -1.0]])
MASK = torch.tensor([[True, True, True], [True, False, True], [False, False, True]])


def test_gumbel_numbers_are_the_double_logarithm_of_the_normal_cdf() -> None:
    z = [-6.0, -2.5, 0.0, 0.7, 4.0, 7.5]
    expected = [-math.log(-math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))) for x in z[:-1]]
    # In the upper tail Phi is 1 - Q, whose logarithm is -Q.
    expected.append(-math.log(0.5 * math.erfc(7.5 / math.sqrt(2.0))))
    torch.testing.assert_close(gumbel_noise(torch.tensor(z)), torch.tensor(expected), rtol=1e-4, atol=1e-4)
    assert torch.isfinite(gumbel_noise(torch.tensor([-12.0, 12.0]))).all()


def test_the_best_legal_action() -> None:
    assert one_hot_best(LOGITS, None).tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert one_hot_best(LOGITS, MASK).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_samples_are_one_hot_and_their_gradient_is_that_of_the_softmax() -> None:
    gumbel = torch.tensor([[0.5, -0.3, 2.0], [0.1, 5.0, 0.4], [0.0, 9.0, 0.2]])
    coefficients = torch.tensor([1.0, -2.0, 0.5])
    logits = LOGITS.clone().requires_grad_()
    sample = straight_through_sample(logits, MASK, gumbel, 0.7)
    torch.testing.assert_close(sample, torch.tensor([[0.0, 0, 1], [1, 0, 0], [0, 0, 1]]))
    (sample * coefficients).sum().backward()
    assert logits.grad is not None
    for row in range(3):
        legal = [a for a in range(3) if MASK[row, a]]
        weights = {a: math.exp(float(LOGITS[row, a] + gumbel[row, a]) / 0.7) for a in legal}
        p = {a: weight / sum(weights.values()) for a, weight in weights.items()}
        mean = sum(p[a] * float(coefficients[a]) for a in legal)
        expected = [p[a] * (float(coefficients[a]) - mean) / 0.7 if a in p else 0.0 for a in range(3)]
        torch.testing.assert_close(logits.grad[row], torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_samples_have_the_probabilities_of_the_softmax() -> None:
    noise = gumbel_noise(torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0)))
    sample = one_hot_best(LOGITS[:1] + noise, MASK[1:2].expand(20_000, -1))
    p = math.exp(1.0) / (math.exp(1.0) + 1.0)
    torch.testing.assert_close(sample.mean(0), torch.tensor([p, 0.0, 1.0 - p]), rtol=0.0, atol=0.012)


def test_means_over_the_present() -> None:
    values = torch.tensor([[1.0, 3.0], [5.0, math.nan], [math.inf, math.nan]], requires_grad=True)
    present = torch.tensor([[True, True], [True, False], [False, False]])
    torch.testing.assert_close(row_means(values, present), torch.tensor([2.0, 5.0, 0.0]))
    mean = mean_over_present(values, present)
    torch.testing.assert_close(mean, torch.tensor(7.0 / 3.0))
    mean.backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[1 / 6, 1 / 6], [1 / 3, 0.0], [0.0, 0.0]]))
    # Every agent always present: the mean of all.
    everyone = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mean_over_present(everyone, torch.ones(5, 3, dtype=torch.bool)), everyone.mean())
