"""Streams of random numbers that belong to rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from marlflow.base.random import RowRandom


def test_whole_numbers_are_uniform_and_a_row_keeps_its_own() -> None:
    keys = np.arange(20_000, dtype=np.uint64)
    drawn = RowRandom(keys, np.zeros(20_000)).integers(5)
    assert drawn.dtype == np.int64
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 20_000, 0.2, atol=0.015)
    alone = RowRandom(keys[7:8], np.zeros(1)).integers(5)
    assert alone == drawn[7:8]


def test_streams_that_were_parted_are_joined_again() -> None:
    keys, counters = np.arange(9, dtype=np.uint64), np.arange(9)
    whole = RowRandom(keys, counters)
    parts = [RowRandom(keys[rows], counters[rows]) for rows in (slice(0, 4), slice(4, 4), slice(4, 9))]
    joined = pickle.loads(pickle.dumps(RowRandom.joined(parts)))  # noqa: S301  our own
    assert len(joined) == 9
    for _ in range(3):
        np.testing.assert_array_equal(joined.uniform(), whole.uniform())
    with pytest.raises(ValueError, match="the same number of draws"):
        RowRandom.joined([joined, parts[0]])


def test_a_stream_knows_whether_anything_was_drawn_from_it_or_its_subsets() -> None:
    whole = RowRandom(np.arange(4, dtype=np.uint64), np.zeros(4, np.int64))
    first, second = whole.only(np.array([0, 1])), whole.only(np.array([2]))
    assert not whole.has_drawn
    first.only(np.array([1])).normal()
    assert (whole.has_drawn, first.has_drawn, second.has_drawn) == (True, True, False)
    second.integers(3)
    assert RowRandom.joined([second, second]).has_drawn
    assert not RowRandom.joined([whole, whole]).has_drawn
