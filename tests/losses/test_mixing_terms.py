"""Losses of mixers against literal tables and plain loops."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marlflow.losses.mixing import greedy_value, peng_lambda_return, reward_spread, taken_value, team_target


def test_greedy_values_and_values_taken_by_a_table() -> None:
    selector = torch.tensor([[[1.0, 5.0, 3.0], [2.0, 0.0, 1.0]]])
    value = torch.tensor([[[10.0, 50.0, 30.0], [20.0, 0.0, 10.0]]])
    assert greedy_value(selector, value, None).tolist() == [[50.0, 20.0]]
    mask = torch.tensor([[[True, False, True], [False, False, True]]])
    assert greedy_value(selector, value, mask).tolist() == [[30.0, 10.0]]
    assert taken_value(value, torch.tensor([[2, 1]])).tolist() == [[30.0, 0.0]]


def test_agents_without_a_legal_action_have_a_finite_value() -> None:
    q = torch.tensor([[[1.0, 2.0]]])
    assert torch.isfinite(greedy_value(q, q, torch.zeros(1, 1, 2, dtype=torch.bool))).all()


def test_targets_have_no_gradient_and_end_with_the_team() -> None:
    q_tot = torch.tensor([7.0, 7.0], requires_grad=True)
    target = team_target(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]), q_tot)
    assert target.tolist() == [4.5, 1.0]
    assert not target.requires_grad


def test_spread_of_rewards_by_a_table() -> None:
    reward = torch.tensor([[1.0, 3.0, 9.0], [2.0, 2.0, 2.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    present = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert reward_spread(reward, present).tolist() == [1.0, 0.0, 0.0, 0.0]


@given(st.integers(1, 4), st.integers(1, 7), st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_lambda_returns_against_a_loop(sequences: int, steps: int, lambda_: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = (sequences, steps)
    reward, q_tot = random.standard_normal(shape), random.standard_normal(shape)
    discount = np.where(random.random(shape) < 0.2, 0.0, 0.9)
    length = random.integers(1, steps + 1, sequences)
    is_last = np.arange(steps) == (length - 1)[:, None]
    found = peng_lambda_return(*map(torch.from_numpy, (reward, discount, q_tot, is_last)), lambda_)
    for s in range(sequences):
        expected = q_tot[s, length[s] - 1]
        for t in reversed(range(length[s])):
            mixed = expected if t == length[s] - 1 else (1.0 - lambda_) * q_tot[s, t] + lambda_ * expected
            expected = reward[s, t] + discount[s, t] * mixed
            assert float(found[s, t]) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 1.0])
def test_lambda_0_is_one_step_and_lambda_1_the_return(lambda_: float) -> None:
    reward, discount = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.5, 0.5]])
    q_tot, is_last = torch.tensor([[8.0, 16.0, 32.0]]), torch.tensor([[False, False, True]])
    returns = peng_lambda_return(reward, discount, q_tot, is_last, lambda_).tolist()
    expected = {0.0: [[5.0, 10.0, 20.0]], 1.0: [[1.0 + 0.5 * (2.0 + 0.5 * 20.0), 2.0 + 0.5 * 20.0, 20.0]]}
    assert returns == expected[lambda_]


def test_each_agents_best_action_is_the_teams_for_every_monotonic_mixing() -> None:
    q = torch.tensor([[[1.0, 4.0, 2.0], [3.0, -1.0, 0.5]]])
    for weights in product((0.1, 2.0), repeat=2):
        best = max(
            product(range(3), repeat=2),
            key=lambda joint: sum(w * float(q[0, k, joint[k]]) for k, w in enumerate(weights)),
        )
        assert greedy_value(q, q, None).tolist() == [[float(q[0, k, best[k]]) for k in range(2)]]
