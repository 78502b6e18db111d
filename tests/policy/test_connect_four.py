"""The player that looks one move ahead, beside one that tries every move on a board."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.classic import connect_four_v3

from marlflow.base.random import RowRandom
from marlflow.policy.connect_four import one_ply

EMPTY, OWN, OTHER = 0, 1, 2


def dropped(board: np.ndarray, column: int, piece: int) -> np.ndarray:
    """The board [6, 7] after a piece has fallen into a column."""
    after = board.copy()
    row = max(row for row in range(6) if board[row, column] == EMPTY)
    after[row, column] = piece
    return after


def has_four(board: np.ndarray, piece: int) -> bool:
    """Whether four pieces are in a line, by every cell and direction."""
    for row in range(6):
        for column in range(7):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + step * down, column + step * right) for step in range(4)]
                on_board = all(0 <= r < 6 and 0 <= c < 7 for r, c in cells)
                if on_board and all(board[cell] == piece for cell in cells):
                    return True
    return False


def good_columns(board: np.ndarray) -> set[int]:
    legal = [column for column in range(7) if board[0, column] == EMPTY]
    wins = {column for column in legal if has_four(dropped(board, column, OWN), OWN)}
    blocks = {column for column in legal if has_four(dropped(board, column, OTHER), OTHER)}
    return wins or blocks or set(legal)


def observed(boards: list[np.ndarray]) -> np.ndarray:
    return np.stack([np.stack([board == OWN, board == OTHER], -1) for board in boards]).astype(np.int8)


def streams(rows: int, seed: int = 0) -> RowRandom:
    return RowRandom(np.full(rows, seed, np.uint64), np.arange(rows))


def played(columns: list[int]) -> np.ndarray | None:
    """The board before the first move that wins, for whoever is next; None if it is full."""
    board = np.zeros((6, 7), int)
    for column in columns:
        legal = [place for place in range(7) if board[0, place] == EMPTY]
        after = dropped(board, legal[column % len(legal)], OWN)
        if has_four(after, OWN):
            break
        # The next player's own pieces are the others of this one.
        board = np.where(after == EMPTY, EMPTY, 3 - after)
        if (board[0] != EMPTY).all():
            return None
    return board


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=41), st.integers(0, 1_000))
def test_each_choice_is_one_of_the_best_by_trying_all(columns: list[int], seed: int) -> None:
    if (board := played(columns)) is None:
        return
    obs = observed([board] * 64)
    mask = np.tile(board[0] == EMPTY, (64, 1))
    chosen = set(one_ply(obs, mask, streams(64, seed)).tolist())
    # Of at most seven columns, each is missed by 64 draws with a probability below 1e-4.
    assert chosen <= good_columns(board)
    assert set(one_ply(obs, None, streams(64, seed)).tolist()) == chosen


def test_all_good_columns_are_chosen_equally_often() -> None:
    board = np.zeros((6, 7), int)
    chosen = one_ply(observed([board] * 7_000), None, streams(7_000))
    assert np.bincount(chosen, minlength=7) == pytest.approx(1_000, abs=120)
    board[5, 1:4] = OTHER
    chosen = one_ply(observed([board] * 1_000), None, streams(1_000))
    assert np.bincount(chosen, minlength=7) == pytest.approx([500, 0, 0, 0, 500, 0, 0], abs=80)


def test_winning_comes_before_blocking_and_a_line_without_ground_does_not_count() -> None:
    board = np.zeros((6, 7), int)
    board[5, 1:4], board[4, 1:4], board[5, 0], board[5, 4] = OTHER, OWN, OWN, OWN
    # Both columns complete a line of the row above the ground.
    assert set(one_ply(observed([board] * 99), None, streams(99)).tolist()) == {0, 4}
    floating = np.zeros((6, 7), int)
    floating[4, 1:4], floating[5, 1:4] = OWN, [OTHER, OWN, OTHER]
    assert set(one_ply(observed([floating] * 99), None, streams(99)).tolist()) == set(range(7))


def test_it_reads_the_boards_of_the_environment_and_nearly_always_beats_random_moves() -> None:
    won, generator = 0, np.random.default_rng(3)
    env = connect_four_v3.env()
    for game in range(30):
        env.reset(seed=game)
        me = env.possible_agents[game % 2]
        while not (any(env.terminations.values()) or any(env.truncations.values())):
            seen = env.observe(agent := env.agent_selection)
            mask = seen["action_mask"].astype(bool)
            move = (
                one_ply(seen["observation"][None], mask[None], streams(1, len(env.board) + game))[0]
                if agent == me
                else generator.choice(np.flatnonzero(mask))
            )
            env.step(int(move))
        won += env.rewards[me] == 1
    assert won >= 24
