"""A scripted player of connect four that looks one move ahead."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom
from marlflow.policy.scripted import uniform_legal

_ROWS, _COLUMNS = 6, 7
_CELLS = _ROWS * _COLUMNS


def one_ply(obs: Array, action_mask: Array | None, generator: RowRandom) -> Array:
    """Return a column for each row: one that wins at once, else one where the opponent would win, else any.

    Among several, each is as likely as any other. `obs` are boards of `pettingzoo.classic.connect_four_v3`,
    [N, 6, 7, 2] with the top row first: one's own pieces, then the opponent's. A full column is never chosen.

    >>> board = np.zeros((1, 6, 7, 2))
    >>> board[0, 5, 2:5, 1] = 1
    >>> board[0, 5, 1, 0] = 1
    >>> one_ply(board, None, RowRandom(np.zeros(1, np.uint64), np.zeros(1))).tolist()
    [5]
    """
    pieces = obs.reshape(len(obs), _CELLS, 2).astype(np.float32)
    own, other = pieces[..., 0], pieces[..., 1]
    empty = (own + other == 0).reshape(-1, _ROWS, _COLUMNS)
    # A piece falls to the lowest empty cell of its column.
    landing = empty & (np.cumsum(empty[:, ::-1], axis=1)[:, ::-1] == 1)
    chosen = empty.any(axis=1) if action_mask is None else action_mask.astype(bool)
    for first, second in ((other, own), (own, other)):
        completed = (_completions(first, second).reshape(landing.shape) & landing).any(axis=1)
        # The last pass is over one's own lines: winning comes before blocking.
        chosen = np.where(completed.any(axis=1, keepdims=True), completed, chosen)
    return uniform_legal(chosen, generator.uniform())[0]


def _completions(own: Array, other: Array) -> Array:
    """Return the empty cells [N, 42] that complete a line whose other cells are all in `own` [N, 42]."""
    missing_one = (own @ _LINES.T == 3) & (other @ _LINES.T == 0)
    found: Array = (missing_one.astype(np.float32) @ _LINES > 0) & (own == 0)
    return found


def _lines() -> Iterator[Array]:
    """Yield each line of four cells, float32 [42]."""
    for row_step, column_step in ((0, 1), (1, 0), (1, 1), (1, -1)):
        for row in range(_ROWS):
            for column in range(_COLUMNS):
                cells = [(row + number * row_step, column + number * column_step) for number in range(4)]
                if all(r < _ROWS and 0 <= c < _COLUMNS for r, c in cells):
                    line = np.zeros((_ROWS, _COLUMNS), np.float32)
                    line[tuple(zip(*cells, strict=True))] = 1
                    yield line.ravel()


_LINES = np.stack(list(_lines()))
