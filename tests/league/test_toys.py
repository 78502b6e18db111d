"""A transitive game, which ratings rank, and a cyclic one, in which they tie and the equilibrium finds the cycle."""

from itertools import combinations

import numpy as np
import pytest

from marlflow.league.alpharank import alpharank, marginals
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.sides import default_sides
from marlflow.league.solvers import nash

NAMES = [f"main@{number}" for number in range(1, 7)]
SIDES = default_sides(["player_0", "player_1"])


def played(names: list[str], chance: object, rounds: int) -> tuple[Payoffs, Ratings]:
    """All pairs play in both seats in each round; `chance` is the probability that the first wins."""
    payoffs, ratings = Payoffs(SIDES, prior_games=0.0), Ratings()
    generator = np.random.default_rng(5)
    for _ in range(rounds):
        for i, j in combinations(range(len(names)), 2):
            for a, b in ((i, j), (j, i)):
                won = 1.0 if generator.random() < chance(a, b) else -1.0  # type: ignore[operator]
                payoffs.add(Game((names[a], names[b]), (won, -won), 1))
                ratings.add([[names[a]], [names[b]]], [won, -won])
    return payoffs, ratings


def matrices(payoffs: Payoffs, names: list[str]) -> np.ndarray:
    """Mean returns; a member against itself was not played, and has 0."""
    return np.nan_to_num(payoffs.matrices([names, names]))


def test_ratings_rank_a_transitive_game() -> None:
    payoffs, ratings = played(NAMES, lambda a, b: 1.0 / (1.0 + np.exp(b - a)), rounds=60)
    strength = [ratings[name].mu for name in NAMES]
    assert strength == sorted(strength)
    assert strength[-1] - strength[0] > 5.0
    for mixture in nash(matrices(payoffs, NAMES)):
        assert mixture[-1] > 0.9
    for share in marginals(alpharank(matrices(payoffs, NAMES))):
        assert share.argmax() == len(NAMES) - 1


def test_ratings_tie_in_a_cycle_and_the_equilibrium_finds_it() -> None:
    # Rock, paper and scissors beat each other nine times of ten, and all beat a fourth.
    names = ["rock", "paper", "scissors", "well"]

    def chance(a: int, b: int) -> float:
        if 3 in (a, b):
            return 0.95 if b == 3 else 0.05
        return 0.9 if (a - b) % 3 == 1 else 0.1

    payoffs, ratings = played(names, chance, rounds=200)
    cycle = [ratings[name].mu for name in names[:3]]
    assert max(cycle) - min(cycle) < 2.0
    assert min(cycle) - ratings["well"].mu > 5.0
    assert payoffs.win_probability("paper", "rock") > 0.85
    assert payoffs.win_probability("rock", "paper") < 0.15
    for mixture in nash(matrices(payoffs, names)):
        assert mixture == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0], abs=0.06)
    for share in marginals(alpharank(matrices(payoffs, names))):
        assert share == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0], abs=0.06)
