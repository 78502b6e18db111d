"""Rings against plain lists of everything ever written."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marlflow.replay.segments import Ring, pieces


@given(first=st.integers(0, 100), count=st.integers(0, 10), size=st.integers(10, 12))
def test_pieces_are_the_slots_in_order(first: int, count: int, size: int) -> None:
    slots = [slot for piece, _ in pieces(first, first + count, size) for slot in range(piece.start, piece.stop)]
    assert slots == [number % size for number in range(first, first + count)]


@given(counts=st.lists(st.integers(0, 7), min_size=1), size=st.integers(7, 20), larger=st.integers(0, 9))
def test_the_newest_entries_are_there_and_survive_a_resize(counts: list[int], size: int, larger: int) -> None:
    ring = Ring(size, {"x": np.zeros((0, 2), np.int16)})
    stop = 0
    for count in counts:
        numbers = np.arange(stop, stop + count, dtype=np.int16)
        ring.write(stop, {"x": np.stack([numbers, -numbers], axis=1)})
        stop += count
    first = max(0, stop - size)
    for each in (ring, ring.resized(size + larger, first, stop)):
        np.testing.assert_array_equal(each.span("x", first, stop)[:, 0], np.arange(first, stop))
        assert each.span("x", first, stop).dtype == np.int16
