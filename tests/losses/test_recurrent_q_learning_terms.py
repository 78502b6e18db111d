"""Q-learning over sequences: literal numbers, and naive loops that know nothing of tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marlflow.losses.q_learning import (
    after_windows,
    mean_over_sequences,
    sequence_priority,
    squash,
    squashed_double_q_target,
    unsquash,
)


def h(x: float, epsilon: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1.0) - 1.0, x) + epsilon * x


def inverse_by_bisection(y: float, epsilon: float) -> float:
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if h(middle, epsilon) < y else (low, middle)
    return low


def test_squashing_is_as_in_the_paper() -> None:
    value = torch.tensor([0.0, 3.0, -3.0, 99.0, -0.5625])
    want = torch.tensor([0.0, 1.003, -1.003, 9.099, -0.25 - 0.0005625])
    torch.testing.assert_close(squash(value, 1e-3), want)
    torch.testing.assert_close(unsquash(want, 1e-3), value)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.5])
def test_unsquashing_is_the_inverse_at_every_size(epsilon: float) -> None:
    squashed = [-40.0, -3.0, -0.4, -1e-3, 0.0, 1e-3, 0.02, 1.0, 7.0, 40.0]
    found = unsquash(torch.tensor(squashed), epsilon).tolist()
    np.testing.assert_allclose(found, [inverse_by_bisection(y, epsilon) for y in squashed], rtol=2e-5, atol=1e-6)


def test_targets_are_squashed_again_after_the_reward_is_added() -> None:
    """The second action is the best that is legal, and worth 3: h(1.5 + 0.5 * 3) is h(3), and h(8) is 2 + 0.008."""
    found = squashed_double_q_target(
        r_t=torch.tensor([[1.5, 8.0]]),
        discount_t=torch.tensor([[0.5, 0.0]]),
        q_t_selector=torch.tensor([[[0.0, 2.0, 9.0], [0.0, 2.0, 9.0]]]),
        q_t_value=torch.tensor([[[5.0, 1.003, 5.0], [5.0, 1.003, 5.0]]]),
        mask_t=torch.tensor([[[True, True, False], [True, True, False]]]),
        epsilon=1e-3,
    )
    torch.testing.assert_close(found, torch.tensor([[1.003, 2.008]]))


def test_targets_equal_a_naive_loop() -> None:
    generator = np.random.default_rng(0)
    count, length, actions, epsilon = 4, 6, 3, 1e-2
    q_online, q_target = (generator.normal(0.0, 3.0, (count, length + 1, actions)) for _ in range(2))
    mask = generator.random((count, length + 1, actions)) < 0.6
    mask[..., 0] |= ~mask.any(-1)
    reward, discount = generator.normal(size=(count, length)), generator.random((count, length))
    following = np.minimum(np.arange(length) + generator.integers(1, 4, (count, length)), length)
    want = np.zeros((count, length))
    for s in range(count):
        for t in range(length):
            then = following[s, t]
            legal = [a for a in range(actions) if mask[s, then, a]]
            best = max(legal, key=lambda a: q_online[s, then, a])
            ahead = inverse_by_bisection(q_target[s, then, best], epsilon)
            want[s, t] = h(reward[s, t] + discount[s, t] * ahead, epsilon)
    at = torch.from_numpy(following)
    found = squashed_double_q_target(
        torch.from_numpy(reward),
        torch.from_numpy(discount),
        after_windows(torch.from_numpy(q_online), at),
        after_windows(torch.from_numpy(q_target), at),
        after_windows(torch.from_numpy(mask), at),
        epsilon,
    )
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-6, atol=1e-8)


def test_what_follows_windows_is_taken_along_time() -> None:
    values = torch.arange(2 * 4).view(2, 4, 1)
    found = after_windows(values, torch.tensor([[2, 3, 3], [1, 2, 0]]))
    assert found.squeeze(-1).tolist() == [[2, 3, 3], [5, 6, 4]]


def test_a_row_counts_alike_in_sequences_of_any_length() -> None:
    loss = torch.tensor([[1.0, 2.0, 99.0, 99.0], [1.0, 1.0, 1.0, 1.0]])
    trained = torch.tensor([[True, True, False, False], [True, True, True, True]])
    found = mean_over_sequences(loss, trained, torch.tensor([2.0, 1.0]))
    assert found.item() == pytest.approx((2.0 * 3.0 / 4.0 + 1.0) / 2.0)


def test_priorities_mix_the_largest_and_the_mean_error_of_rows_that_are_there() -> None:
    size = torch.tensor([[1.0, 3.0, 50.0], [2.0, 2.0, 5.0]])
    trained = torch.tensor([[True, True, False], [True, True, True]])
    torch.testing.assert_close(sequence_priority(size, trained, 0.9), torch.tensor([2.9, 4.8]))
    generator = np.random.default_rng(1)
    errors, lengths = generator.random((5, 7)), [1, 3, 7, 2, 5]
    want = [0.3 * max(row[:n]) + 0.7 * sum(row[:n]) / n for row, n in zip(errors.tolist(), lengths, strict=True)]
    there = torch.arange(7) < torch.tensor(lengths)[:, None]
    found = sequence_priority(torch.from_numpy(errors), there, 0.3)
    np.testing.assert_allclose(found.numpy(), want)
