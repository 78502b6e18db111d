"""Meta-strategies beside enumeration, known games and OpenSpiel's dynamics."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from open_spiel.python.algorithms.projected_replicator_dynamics import projected_replicator_dynamics

from marlflow.league import solvers
from marlflow.league.solvers import (
    SOLVERS,
    expected_payoffs,
    general_sum,
    nash,
    prd,
    rectified_rivals,
    replicator,
    uniform,
)

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
# OpenSpiel's matrix_brps: rock beats scissors by 25/20 and so on, in units in which the equilibrium is unchanged.
BIASED = np.array([[0.0, -0.25, 0.5], [0.25, 0.0, -0.05], [-0.5, 0.05, 0.0]])
GAMES = hnp.arrays(np.float64, (4, 4), elements=st.integers(-20, 20).map(float))


def zero_sum(game: np.ndarray) -> np.ndarray:
    return np.stack([game, -game])


def exploitability_within(payoffs: np.ndarray, strategies: Sequence[np.ndarray]) -> float:
    """The sum over roles of what the best member would gain by deviating from its mixture (NashConv)."""
    by_role = [expected_payoffs(payoffs, strategies, role) for role in range(len(strategies))]
    return sum(float(values.max() - mixture @ values) for values, mixture in zip(by_role, strategies, strict=True))


def value_by_enumeration(game: np.ndarray) -> float:
    """The value of a zero-sum game: the best that any kernel, or square subgame, guarantees (Shapley and Snow)."""
    best = -np.inf
    rows, columns = game.shape
    for size in range(1, min(rows, columns) + 1):
        for support in combinations(range(rows), size):
            for opposing in combinations(range(columns), size):
                system = np.zeros((size + 1, size + 1))
                system[:size, :size] = game[np.ix_(support, opposing)].T
                system[:size, size] = -1.0
                system[size, :size] = 1.0
                if abs(np.linalg.det(system)) < 1e-9:
                    continue
                solution = np.linalg.solve(system, np.append(np.zeros(size), 1.0))
                mixture = np.zeros(rows)
                mixture[list(support)] = solution[:size]
                if mixture.min() >= -1e-9:
                    best = max(best, float((mixture @ game).min()))
    return best


@given(GAMES)
def test_nash_is_worth_what_the_best_vertex_is(game: np.ndarray) -> None:
    row, column = nash(zero_sum(game))
    value = value_by_enumeration(game)
    assert (row @ game).min() == pytest.approx(value, abs=1e-7)
    assert (game @ column).max() == pytest.approx(value, abs=1e-7)
    assert exploitability_within(zero_sum(game), [row, column]) == pytest.approx(0.0, abs=1e-7)


def test_nash_of_biased_rock_paper_scissors() -> None:
    for mixture in nash(zero_sum(BIASED)):
        assert mixture == pytest.approx([0.0625, 0.625, 0.3125])
    assert exploitability_within(zero_sum(BIASED), uniform(zero_sum(BIASED))) == pytest.approx(1 / 6)


def test_nash_does_not_mind_a_constant_sum() -> None:
    chances = (ROCK_PAPER_SCISSORS + 1.0) / 2.0
    for mixture in nash(np.stack([chances, 1.0 - chances])):
        assert mixture == pytest.approx([1 / 3] * 3)


def test_nash_of_populations_of_different_sizes() -> None:
    row, column = nash(zero_sum(np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])))
    assert (len(row), len(column)) == (2, 3)
    assert row == pytest.approx([0.5, 0.5])
    assert [mixture.tolist() for mixture in nash(zero_sum(np.array([[3.0]])))] == [[1.0], [1.0]]


def test_nash_of_three_roles_is_refused() -> None:
    with pytest.raises(ValueError, match="nash solves games of two roles, not of 3; use prd, replicator or uniform"):
        nash(np.zeros((3, 2, 2, 2)))


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_a_game_of_constant_sum_is_not_general(constant: float) -> None:
    payoffs = np.stack([ROCK_PAPER_SCISSORS, constant - ROCK_PAPER_SCISSORS])
    assert general_sum(payoffs, np.zeros_like(payoffs)) is None


def test_a_game_of_general_sum_is_noticed_beyond_the_noise() -> None:
    dilemma = np.array([[3.0, 0.0], [5.0, 1.0]])
    payoffs = np.stack([dilemma, dilemma.T])
    problem = general_sum(payoffs, np.full((2, 2, 2), 0.1))
    assert problem is not None
    assert problem.startswith("the returns of both roles sum to 2 for members 1 and 1, and to 4.5 on average")
    # The largest difference of the sum from its mean is 2.5.
    assert general_sum(payoffs, np.full((2, 2, 2), 0.6)) is None
    assert general_sum(payoffs, np.full((2, 2, 2), 0.58)) is not None


@pytest.mark.parametrize("solver", [replicator, prd])
def test_dynamics_in_matching_pennies_average_to_one_half(solver: object) -> None:
    game = np.array([[1.0, -1.0], [-1.0, 1.0]])
    for mixture in solver(zero_sum(game), steps=2000):  # type: ignore[operator]
        assert mixture == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("solver", [replicator, prd])
def test_dynamics_find_a_dominant_member(solver: object) -> None:
    # The prisoner's dilemma: the second member is better against both.
    row = np.array([[3.0, 0.0], [5.0, 1.0]])
    for mixture in solver(np.stack([row, row.T]), steps=2000, step_size=0.05):  # type: ignore[operator]
        assert mixture[1] > 0.95


@pytest.mark.parametrize("largest", [2e-4, 1.0, 300.0, 2e6])
@pytest.mark.parametrize("solver", [replicator, prd])
def test_the_unit_of_rewards_does_not_matter_to_dynamics(solver: object, largest: float) -> None:
    # The only equilibrium of this game of rock, paper and scissors is (1, 10, 5) / 16.
    game = np.array([[0.0, -25.0, 50.0], [25.0, 0.0, -5.0], [-50.0, 5.0, 0.0]])
    payoffs = np.stack([game, -game]) * largest / 50.0
    mixtures = solver(payoffs, steps=20_000)  # type: ignore[operator]
    assert exploitability_within(payoffs, mixtures) < 0.02 * largest
    expected = solver(np.stack([game, -game]), steps=20_000)  # type: ignore[operator]
    # Mixtures go round and round, so that rounding adds up.
    np.testing.assert_allclose(mixtures, expected, atol=0.01)
    other_role = solver(np.stack([game, -1e4 * game]), steps=20_000)  # type: ignore[operator]
    np.testing.assert_allclose(other_role, expected, atol=0.01)


@settings(max_examples=5)
@given(hnp.arrays(np.float64, st.sampled_from([(2, 3, 3), (2, 2, 4), (3, 2, 3, 2)]), elements=st.floats(-2, 2)))
def test_projected_dynamics_are_openspiels(payoffs: np.ndarray) -> None:
    expected = projected_replicator_dynamics(
        list(payoffs), prd_iterations=300, prd_dt=0.1, prd_gamma=0.01, average_over_last_n_strategies=300
    )
    for mixture, came in zip(prd(payoffs, steps=300, step_size=0.1, floor=0.01), expected, strict=True):
        np.testing.assert_allclose(mixture, came, atol=1e-6)


def test_projected_dynamics_keep_every_member() -> None:
    mixture, _ = prd(zero_sum(np.array([[1.0, 1.0], [0.0, 0.0]])), steps=2000, step_size=0.1, floor=0.05)
    assert mixture.min() >= 0.05


def test_three_roles_have_a_mixture_each() -> None:
    # The third role's second member is best if the others choose their firsts, which dominate.
    payoffs = np.zeros((3, 2, 2, 2))
    payoffs[0, 0] = payoffs[1, :, 0] = 1.0
    payoffs[2, 0, 0, 1] = 1.0
    for solver in (replicator, prd):
        mixtures = solver(payoffs, steps=3000, step_size=0.05)
        assert [int(mixture.argmax()) for mixture in mixtures] == [0, 0, 1]
        assert exploitability_within(payoffs, mixtures) < 0.2
    assert exploitability_within(payoffs, [np.eye(2)[0], np.eye(2)[0], np.eye(2)[1]]) == 0.0


@given(hnp.arrays(np.float64, (3, 2, 3, 4), elements=st.floats(-9, 9)), st.integers(0, 2))
def test_expected_payoffs_are_those_of_a_naive_sum(payoffs: np.ndarray, role: int) -> None:
    mixtures = [weights / weights.sum() for weights in (np.arange(1.0, size + 1) for size in payoffs.shape[1:])]
    expected = np.zeros(payoffs.shape[1 + role])
    for index in np.ndindex(payoffs.shape[1:]):
        others = np.prod([mixtures[other][number] for other, number in enumerate(index) if other != role])
        expected[index[role]] += others * payoffs[(role, *index)]
    np.testing.assert_allclose(expected_payoffs(payoffs, mixtures, role), expected, atol=1e-9)


@given(hnp.arrays(np.float64, st.integers(2, 6), elements=st.floats(-3, 3)), st.sampled_from([0.0, 1e-3, 0.1]))
def test_a_projection_is_a_distribution_and_the_nearest(point: np.ndarray, floor: float) -> None:
    projected = solvers._projected(point, floor)
    assert projected.sum() == pytest.approx(1.0)
    assert projected.min() >= floor - 1e-12
    # The nearest point of a convex set: no other point of the set lies further in the direction of the projected point.
    for corner in np.eye(len(point)):
        other = floor + (1.0 - floor * len(point)) * corner
        assert (point - projected) @ (other - projected) <= 1e-9


def test_rectified_rivals_are_those_that_a_member_does_not_lose_to() -> None:
    payoffs, thirds = zero_sum(ROCK_PAPER_SCISSORS), [np.full(3, 1 / 3)] * 2
    assert rectified_rivals(payoffs, thirds, 0, 0) == pytest.approx([0.5, 0.0, 0.5])
    assert rectified_rivals(payoffs, thirds, 1, 1) == pytest.approx([0.5, 0.5, 0.0])
    # It loses to the whole support: then no rival is left out.
    only_paper = [np.eye(3)[1]] * 2
    assert rectified_rivals(payoffs, only_paper, 0, 0) == pytest.approx([0.0, 1.0, 0.0])


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_gives_distributions(name: str) -> None:
    payoffs = zero_sum(np.random.default_rng(3).normal(size=(3, 5)))
    mixtures = SOLVERS[name](payoffs)
    assert [mixture.shape for mixture in mixtures] == [(3,), (5,)]
    for mixture in mixtures:
        assert mixture.sum() == pytest.approx(1.0)
        assert mixture.min() >= 0.0
