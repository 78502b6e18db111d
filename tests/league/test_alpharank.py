"""Alpha-rank beside OpenSpiel's, and where OpenSpiel's has no answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from open_spiel.python.egt import alpharank as openspiel

from marlflow.league.alpharank import alpharank, alpharank_of_one_population, fixation, marginals

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
# Payoffs that differ as much as in Kuhn poker, whose returns are between -2 and 2.
PAYOFFS = st.sampled_from([(2, 3, 3), (2, 2, 4), (3, 2, 3, 2)]).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=st.integers(-20, 20).map(lambda number: number / 10))
)


@settings(max_examples=15)
@given(PAYOFFS, st.sampled_from([0.01, 0.1]))
def test_a_finite_intensity_gives_openspiels_distribution(payoffs: np.ndarray, alpha: float) -> None:
    *_, expected, _, _ = openspiel.compute(list(payoffs), m=50, alpha=alpha)
    np.testing.assert_allclose(alpharank(payoffs, alpha, population=50).ravel(), expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_infinite_intensity_is_the_limit_of_openspiels_noise(seed: int) -> None:
    # A zero-sum game: all profiles lead to the same ones in the end, so the limit does not depend on the noise.
    game = np.random.default_rng(seed).normal(size=(3, 3))
    payoffs = np.stack([game, -game])
    *_, expected, _, _ = openspiel.compute(list(payoffs), use_inf_alpha=True, inf_alpha_eps=1e-6)
    np.testing.assert_allclose(alpharank(payoffs).ravel(), expected, atol=1e-5)


SYMMETRIC = st.integers(2, 6).flatmap(
    lambda size: hnp.arrays(np.float64, (size, size), elements=st.integers(-20, 20).map(lambda number: number / 10))
)


@settings(max_examples=15)
@given(SYMMETRIC, st.sampled_from([0.01, 0.1]))
def test_one_population_has_openspiels_distribution(payoffs: np.ndarray, alpha: float) -> None:
    # One table of payoffs is a symmetric game of one population there.
    *_, expected, _, _ = openspiel.compute([payoffs], m=50, alpha=alpha)
    np.testing.assert_allclose(alpharank_of_one_population(payoffs, alpha, population=50), expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_one_population_at_infinite_intensity_is_the_limit_of_openspiels_noise(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(5, 5))
    payoffs = values - values.T
    *_, expected, _, _ = openspiel.compute([payoffs], use_inf_alpha=True, inf_alpha_eps=1e-6)
    np.testing.assert_allclose(alpharank_of_one_population(payoffs), expected, atol=1e-4)


def test_one_population_is_not_two() -> None:
    # A cycle of three, which a fourth loses to but for one: two populations are also where one of each leads.
    payoffs = np.zeros((4, 4))
    payoffs[:3, :3] = ROCK_PAPER_SCISSORS
    payoffs[3, :3], payoffs[:3, 3] = [-1, -1, 2], [1, 1, -2]
    one = alpharank_of_one_population(payoffs)
    assert one.sum() == pytest.approx(1.0)
    assert one.tolist() == pytest.approx(
        openspiel.compute([payoffs], use_inf_alpha=True, inf_alpha_eps=1e-6)[2], abs=1e-4
    )
    two = marginals(alpharank(np.stack([payoffs, payoffs.T])))[0]
    assert np.abs(one - two).max() > 0.01
    assert alpharank_of_one_population(np.zeros((1, 1))).tolist() == [1.0]
    with pytest.raises(ValueError, match="30,000 members is too much; the most are 20,000"):
        alpharank_of_one_population(np.broadcast_to(np.zeros(()), (30_000, 30_000)))


def two_coordinations() -> np.ndarray:
    """Roles that want the same: without noise, neither (0, 0) nor (1, 1) is ever left."""
    return np.stack([np.eye(2), np.eye(2)])


def test_a_reducible_chain_that_openspiel_refuses_is_ranked() -> None:
    payoffs = two_coordinations()
    with pytest.raises(ValueError, match="Expected 1 stationary distribution, but found 2"):
        openspiel.compute(list(payoffs), use_inf_alpha=True, inf_alpha_eps=0.0)
    np.testing.assert_allclose(alpharank(payoffs), np.eye(2) / 2, atol=1e-5)


def test_a_reducible_chain_is_ranked_by_what_leads_to_each_end() -> None:
    # Coordination of three choices, of which the third of each role alone is never better.
    payoffs = np.zeros((2, 3, 3))
    payoffs[:, 0, 0] = payoffs[:, 1, 1] = 1.0
    payoffs[0, 2], payoffs[1, :, 2] = -1.0, -1.0
    distribution = alpharank(payoffs)
    assert distribution.sum() == pytest.approx(1.0)
    assert distribution[0, 0] == pytest.approx(0.5, abs=1e-4)
    assert distribution[1, 1] == pytest.approx(0.5, abs=1e-4)


def test_a_dominant_profile_has_all_the_mass() -> None:
    dilemma = np.array([[3.0, 0.0], [5.0, 1.0]])
    assert alpharank(np.stack([dilemma, dilemma.T]))[1, 1] == pytest.approx(1.0, abs=1e-5)


def test_a_cycle_shares_the_mass() -> None:
    distribution = alpharank(np.stack([ROCK_PAPER_SCISSORS, -ROCK_PAPER_SCISSORS]))
    for marginal in marginals(distribution):
        assert marginal == pytest.approx([1 / 3] * 3)


def test_equal_payoffs_share_the_mass() -> None:
    np.testing.assert_allclose(alpharank(np.zeros((3, 2, 3, 1))), 1 / 6)


def test_one_profile_has_all_the_mass() -> None:
    assert alpharank(np.ones((2, 1, 1))).tolist() == [[1.0]]


def test_three_roles_find_the_profile_that_nobody_wants_to_leave() -> None:
    # Each role prefers its first member, whatever the others do.
    payoffs = np.zeros((3, 2, 2, 2))
    payoffs[0, 0], payoffs[1, :, 0], payoffs[2, :, :, 0] = 1.0, 1.0, 1.0
    distribution = alpharank(payoffs)
    assert distribution[0, 0, 0] == pytest.approx(1.0, abs=1e-5)
    for marginal in marginals(distribution):
        assert marginal == pytest.approx([1.0, 0.0], abs=1e-5)


@pytest.mark.parametrize(
    ("gain", "alpha", "chance"),
    [
        (1.0, None, 1.0),
        (0.0, None, 0.5),
        (-1.0, None, 0.0),
        (0.0, 1.0, 1 / 4),
        (1.0, 1.0, (1 - np.exp(-1)) / (1 - np.exp(-4))),
        (-1.0, 1.0, (1 - np.exp(1)) / (1 - np.exp(4))),
        (1e6, 1.0, 1.0),
        (-1e6, 1.0, 0.0),
    ],
)
def test_chances_to_take_over_a_population_of_four(gain: float, alpha: float | None, chance: float) -> None:
    assert fixation(np.array([gain]), alpha, population=4) == pytest.approx([chance])


def test_a_million_profiles_are_refused() -> None:
    payoffs = np.broadcast_to(np.zeros(()), (2, 1000, 1000))
    with pytest.raises(ValueError, match="1,000,000 profiles is too much; the most are 20,000"):
        alpharank(payoffs)
