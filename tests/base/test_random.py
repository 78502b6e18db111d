"""Streams of random numbers that belong to rows."""

from __future__ import annotations

import numpy as np

from marlflow.base.random import RowRandom


def test_whole_numbers_are_uniform_and_a_row_keeps_its_own() -> None:
    keys = np.arange(20_000, dtype=np.uint64)
    drawn = RowRandom(keys, np.zeros(20_000)).integers(5)
    assert drawn.dtype == np.int64
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 20_000, 0.2, atol=0.015)
    alone = RowRandom(keys[7:8], np.zeros(1)).integers(5)
    assert alone == drawn[7:8]
