"""Alpha-rank beside OpenSpiel's, and where OpenSpiel's has no answer."""

import numpy as np
import pytest
from open_spiel.python.egt import alpharank as openspiel

from marlflow.league.alpharank import alpharank, alpharank_of_one_population, marginals

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


@pytest.mark.parametrize("seed", range(5))
def test_infinite_intensity_is_the_limit_of_openspiels_noise(seed: int) -> None:
    # A zero-sum game: all profiles lead to the same ones in the end, so the limit does not depend on the noise.
    game = np.random.default_rng(seed).normal(size=(3, 3))
    payoffs = np.stack([game, -game])
    *_, expected, _, _ = openspiel.compute(list(payoffs), use_inf_alpha=True, inf_alpha_eps=1e-6)
    np.testing.assert_allclose(alpharank(payoffs).ravel(), expected, atol=1e-5)


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


def test_a_million_profiles_are_refused() -> None:
    payoffs = np.broadcast_to(np.zeros(()), (2, 1000, 1000))
    with pytest.raises(ValueError, match="1,000,000 profiles is too much; the most are 20,000"):
        alpharank(payoffs)
