"""A random stream for each row, of fixed keys."""

import numpy as np

import marlflow as mf


def row_random(rows: int, counter: int = 0) -> mf.RowRandom:
    return mf.RowRandom(np.arange(rows, dtype=np.uint64), np.full(rows, counter))
