"""Sequences hold each row once, in order, none across a segment's end, and know what was remembered before them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.sequences import cut_sequences


def batch_of(lengths, seed=0):
    """Segments of these lengths; every number in it is another, so that whatever is mixed up shows."""
    rows, generator = sum(lengths), np.random.default_rng(seed)
    columns = {
        "obs": np.arange(1.0, 2 * rows + 1, dtype=np.float32).reshape(rows, 2),
        "action": np.arange(rows) + 1_000,
        "reward": np.arange(rows) + 0.25,
        "action_mask": generator.random((rows, 3)) < 0.5,
        "version": generator.integers(0, 5, rows),
        "memory": -np.arange(1.0, rows + 1, dtype=np.float32)[:, None, None].repeat(3, 2),
    }
    segments = {"length": np.array(lengths, np.int64), "carried": generator.random(len(lengths)) < 0.5}
    return EstimatedBatch(columns, segments)


def naive(batch, length):
    """Of each sequence its rows, as indices, and whether it begins with a row that was carried."""
    found, start = [], 0
    for rows, carried in zip(batch.segments["length"].tolist(), batch.segments["carried"].tolist(), strict=True):
        for first in range(start, start + rows, length):
            found.append((list(range(first, min(first + length, start + rows))), carried and first == start))
        start += rows
    return found


@given(st.lists(st.integers(1, 12), max_size=6), st.integers(1, 7), st.integers(0, 99))
def test_they_are_what_a_naive_loop_cuts(lengths, length, seed):
    batch = batch_of(lengths, seed)
    cut, expected = cut_sequences(batch, length), naive(batch, length)
    assert (cut.count, cut.rows) == (len(expected), batch.rows)
    assert cut.valid.shape == (len(expected), length)
    assert set(cut.columns) == set(batch.columns) - {"memory"}
    np.testing.assert_array_equal(cut.version, batch.columns["version"])
    for number, (rows, carried) in enumerate(expected):
        np.testing.assert_array_equal(cut.valid[number], np.arange(length) < len(rows))
        for name, column in cut.columns.items():
            np.testing.assert_array_equal(column[number, : len(rows)], batch.columns[name][rows])
            assert column.dtype == batch.columns[name].dtype
            assert not column[number, len(rows) :].any()
        np.testing.assert_array_equal(cut.memory[number], batch.columns["memory"][rows[0]])
        assert cut.carried[number] == carried


def test_a_segment_of_five_in_sequences_of_two():
    cut = cut_sequences(batch_of([5]), length=2)
    np.testing.assert_array_equal(cut.columns["action"], [[1000, 1001], [1002, 1003], [1004, 0]])
    np.testing.assert_array_equal(cut.valid, [[True, True], [True, True], [True, False]])
    np.testing.assert_array_equal(cut.memory[:, 0, 0], [-1, -3, -5])
    np.testing.assert_array_equal(cut.weight, np.float32(0.6) * cut.valid)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 7), st.data())
def test_a_mean_over_sequences_of_weighted_sums_is_the_mean_over_rows_and_shares_of_it_add_up(lengths, length, data):
    batch = batch_of(lengths)
    cut = cut_sequences(batch, length)
    by_sequence = (cut.columns["reward"] * cut.weight).sum(1)
    np.testing.assert_allclose(by_sequence.mean(), batch.columns["reward"].mean(), rtol=1e-6)
    stop = data.draw(st.integers(1, cut.count))
    shares = [part for part in (by_sequence[:stop], by_sequence[stop:]) if len(part)]
    np.testing.assert_allclose(sum(part.mean() * len(part) / cut.count for part in shares), by_sequence.mean())
