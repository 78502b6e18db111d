"""Two-player zero-sum games as matrices of the first player's returns, and what exploits a pair of mixtures."""

from itertools import permutations, product

import numpy as np

PENNIES = np.array([[1.0, -1.0], [-1.0, 1.0]])
# OpenSpiel's matrix_brps: rock beats scissors by 25/20 and so on, in units in which the equilibrium is unchanged.
BIASED = np.array([[0.0, -0.25, 0.5], [0.25, 0.0, -0.05], [-0.5, 0.05, 0.0]])


def nash_conv(game: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """The gain of best responses against two mixtures of pure strategies, summed over both players."""
    return float((game @ second).max() - (first @ game).min())


def kuhn() -> np.ndarray:
    """Kuhn poker in normal form, [64, 64].

    A pure strategy has two bits per card. The first player's: bet at once; call after pass and bet. The second's: bet
    after a pass; call after a bet.
    """
    strategies = list(product((0, 1), repeat=6))
    game = np.zeros((64, 64))
    for (row, first), (column, second) in product(enumerate(strategies), enumerate(strategies)):
        game[row, column] = np.mean([_deal(first, second, *cards) for cards in permutations(range(3), 2)])
    return game


def _deal(first: tuple[int, ...], second: tuple[int, ...], card: int, other: int) -> float:
    won = 1.0 if card > other else -1.0
    bets, calls = first[2 * card : 2 * card + 2]
    bets_after_pass, calls_bet = second[2 * other : 2 * other + 2]
    if bets:
        return 2.0 * won if calls_bet else 1.0
    if not bets_after_pass:
        return won
    return 2.0 * won if calls else -1.0
