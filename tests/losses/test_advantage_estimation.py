import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from marlflow.losses.gae_and_vtrace import generalized_advantage_estimation, reverse_linear_recurrence


def test_against_a_table() -> None:
    # Two steps and a termination, by hand: deltas are 1 + 0.5 * 4 - 2 = 1 and 2 - 4 = -2.
    advantage = generalized_advantage_estimation(
        r_t=torch.tensor([1.0, 2.0]),
        discount_t=torch.tensor([0.5, 0.0]),
        lambda_t=torch.tensor([0.5, 0.5]),
        v_tm1=torch.tensor([2.0, 4.0]),
        v_t=torch.tensor([4.0, 99.0]),
    )
    torch.testing.assert_close(advantage, torch.tensor([1.0 + 0.25 * -2.0, -2.0]))


def test_truncation_bootstraps_and_lets_nothing_flow_back() -> None:
    advantage = generalized_advantage_estimation(
        r_t=torch.tensor([1.0, 100.0]),
        discount_t=torch.tensor([0.9, 0.9]),
        lambda_t=torch.tensor([0.0, 0.0]),
        v_tm1=torch.tensor([2.0, 0.0]),
        v_t=torch.tensor([10.0, 0.0]),
    )
    torch.testing.assert_close(advantage, torch.tensor([1.0 + 9.0 - 2.0, 100.0]))


@given(
    steps=st.integers(0, 40), columns=st.integers(1, 3), seed=st.integers(0, 1000), kept=st.sampled_from([0, 0.5, 1])
)
def test_recurrence_equals_a_loop(steps: int, columns: int, seed: int, kept: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((steps, columns))
    decay = rng.random((steps, columns)) * (rng.random((steps, columns)) < kept)
    expected, later = np.zeros_like(x), np.zeros(columns)
    for t in reversed(range(steps)):
        later = x[t] + decay[t] * later
        expected[t] = later
    found = reverse_linear_recurrence(torch.from_numpy(x), torch.from_numpy(decay))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
