"""V-trace against a table by hand, the equations of the paper in plain loops, and lambda returns."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marlflow.losses.gae_and_vtrace import generalized_advantage_estimation, vtrace


def test_against_a_table() -> None:
    # By hand. rho = (0.5, 1), c = (0.5, 0.8): the second ratio is 2. One step, then a termination.
    # td = (0.5 * (1 + 0.5 * 4 - 2), 2 - 4) = (0.5, -2); the first keeps 0.5 * 0.5 of the second.
    found = vtrace(
        r_t=torch.tensor([1.0, 2.0]),
        discount_t=torch.tensor([0.5, 0.0]),
        lambda_t=torch.tensor([1.0, 1.0]),
        v_tm1=torch.tensor([2.0, 4.0]),
        v_t=torch.tensor([4.0, 99.0]),
        log_rho_tm1=torch.tensor([0.5, 2.0]).log(),
        rho_max=1.0,
        c_max=0.8,
    )
    torch.testing.assert_close(found.target_tm1, torch.tensor([2.0 + 0.5 + 0.25 * -2.0, 2.0]))
    torch.testing.assert_close(found.advantage_tm1, torch.tensor([0.5 * (1.0 + 0.5 * 2.0 - 2.0), -2.0]))


def test_truncation_bootstraps_and_lets_nothing_flow_back() -> None:
    found = vtrace(
        r_t=torch.tensor([1.0, 100.0]),
        discount_t=torch.tensor([0.9, 0.9]),
        lambda_t=torch.tensor([0.0, 0.0]),
        v_tm1=torch.tensor([2.0, 0.0]),
        v_t=torch.tensor([10.0, 0.0]),
        log_rho_tm1=torch.tensor([0.0, 0.0]),
    )
    torch.testing.assert_close(found.target_tm1, torch.tensor([1.0 + 9.0, 100.0]))
    torch.testing.assert_close(found.advantage_tm1, torch.tensor([1.0 + 9.0 - 2.0, 100.0]))


def equation_1(
    r: list[float], values: list[float], rho: list[float], discount: float, rho_max: float, c_max: float
) -> tuple[list[float], list[float]]:
    """Targets as the sum over all later steps, and the policy gradient's advantages, of one segment of n steps.

    `values` [n + 1] ends with the value of what follows.
    """
    steps = len(r)
    delta = [min(rho_max, rho[t]) * (r[t] + discount * values[t + 1] - values[t]) for t in range(steps)]
    targets = []
    for s in range(steps):
        total = values[s]
        for t in range(s, steps):
            total += discount ** (t - s) * math.prod(min(c_max, rho[i]) for i in range(s, t)) * delta[t]
        targets.append(total)
    after = [*targets[1:], values[-1]]
    return targets, [min(rho_max, rho[s]) * (r[s] + discount * after[s] - values[s]) for s in range(steps)]


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    terminated=st.lists(st.booleans(), min_size=5, max_size=5),
    seed=st.integers(0, 1000),
    cuts=st.sampled_from([(1.0, 1.0), (2.0, 1.0), (math.inf, math.inf), (0.5, 0.25)]),
)
def test_equals_the_equations_segment_by_segment(
    lengths: list[int], terminated: list[bool], seed: int, cuts: tuple[float, float]
) -> None:
    rng, discount = np.random.default_rng(seed), 0.9
    columns: list[tuple[Tensor, ...]] = []
    targets: list[float] = []
    advantages: list[float] = []
    for length, ends in zip(lengths, terminated, strict=False):
        r, values = rng.standard_normal(length), rng.standard_normal(length + 1)
        log_rho = rng.standard_normal(length)
        if ends:
            values[-1] = 0.0
        found = equation_1(r.tolist(), values.tolist(), np.exp(log_rho).tolist(), discount, *cuts)
        targets += found[0]
        advantages += found[1]
        discounts, lambdas, v_t = np.full(length, discount), np.ones(length), values[1:].copy()
        lambdas[-1] = 0.0
        if ends:  # what would follow must not matter then
            discounts[-1], lambdas[-1], v_t[-1] = 0.0, rng.random(), 99.0
        columns.append(tuple(map(torch.from_numpy, (r, discounts, lambdas, values[:-1], v_t, log_rho))))
    estimate = vtrace(*(torch.cat(parts) for parts in zip(*columns, strict=True)), *cuts)
    np.testing.assert_allclose(estimate.target_tm1.numpy(), targets, atol=1e-9)
    np.testing.assert_allclose(estimate.advantage_tm1.numpy(), advantages, atol=1e-9)


@given(steps=st.integers(1, 20), seed=st.integers(0, 1000), mixing=st.sampled_from([0.0, 0.5, 1.0]))
def test_on_policy_it_is_the_lambda_return(steps: int, seed: int, mixing: float) -> None:
    rng = np.random.default_rng(seed)
    r_t, v_tm1, v_t = map(torch.from_numpy, rng.standard_normal((3, steps)))
    v_t[:-1] = v_tm1[1:]
    discount_t, lambda_t = torch.full_like(r_t, 0.9), torch.full_like(r_t, mixing)
    lambda_t[-1] = 0.0
    found = vtrace(r_t, discount_t, lambda_t, v_tm1, v_t, torch.zeros_like(r_t))
    advantage = generalized_advantage_estimation(r_t, discount_t, lambda_t, v_tm1, v_t)
    torch.testing.assert_close(found.target_tm1, v_tm1 + advantage)
    torch.testing.assert_close(found.advantage_tm1, advantage)


def test_with_lambda_1_on_policy_it_is_the_whole_return() -> None:
    r_t, discount_t = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.5, 0.5])
    v_tm1, v_t, lambda_t = torch.tensor([7.0, -3.0, 5.0]), torch.tensor([-3.0, 5.0, 8.0]), torch.tensor([1.0, 1.0, 0.0])
    found = vtrace(r_t, discount_t, lambda_t, v_tm1, v_t, torch.zeros(3))
    torch.testing.assert_close(found.target_tm1, torch.tensor([1.0 + 1.0 + 1.0 + 1.0, 2.0 + 2.0 + 2.0, 4.0 + 4.0]))


def test_actions_that_the_policy_would_not_choose_any_more_teach_nothing() -> None:
    logp = torch.tensor([0.0, -math.inf, 0.0])
    v_tm1, v_t = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 3.0, 4.0])
    found = vtrace(torch.ones(3), torch.full((3,), 0.9), torch.tensor([1.0, 1.0, 0.0]), v_tm1, v_t, logp)
    assert found.target_tm1[1] == 2.0
    assert found.advantage_tm1[1] == 0.0
    torch.testing.assert_close(found.target_tm1[0], torch.tensor(1.0 + 0.9 * 2.0))
