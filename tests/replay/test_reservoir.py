"""The reservoir: against a naive loop, uniform over a long stream, and continued from any of its checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

import marlflow as mf
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.replay import reservoir as reservoir_module
from tests.driver.kept_runs import assert_equal


def numbered(first: int, count: int) -> mf.Batch:
    """Rows whose action is their number in the stream."""
    number = np.arange(first, first + count)
    columns = {
        "obs": np.stack([number, -number], axis=1).astype(np.float32),
        "action": number,
        "reward": np.zeros(count),
        "action_mask": number[:, None] % 3 != np.arange(3),
        "version": number // 7,
    }
    return mf.Batch(columns, {"length": np.array([count])})


def filled(capacity: int, sizes: list[int], seed: int = 1) -> mf.Reservoir:
    reservoir, first = mf.Reservoir(capacity, seed), 0
    for size in sizes:
        reservoir.insert(numbered(first, size))
        first += size
    return reservoir


def contents(reservoir: mf.Reservoir) -> list[int]:
    """The rows by slot."""
    rows = reservoir.rows(0)
    by_number = dict(zip(rows["numbers"].tolist(), rows["columns"]["action"].tolist(), strict=True))
    return [by_number[number] for number in reservoir.state()["numbers"].tolist()]


def naive(capacity: int, total: int, seed: int) -> list[int]:
    """Algorithm R, a row at a time, by the same random numbers."""
    reservoir, kept = mf.Reservoir(capacity, seed), []
    for number in range(total):
        chance = reservoir._uniform(b"insert", number, 1)[0]
        if number < capacity:
            kept.append(number)
        elif (slot := int(chance * (number + 1))) < capacity:
            kept[slot] = number
    return kept


@given(st.integers(1, 9), st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 99))
def test_it_is_algorithm_r_however_rows_are_divided_into_batches(capacity: int, sizes: list[int], seed: int) -> None:
    reservoir = filled(capacity, sizes, seed)
    assert contents(reservoir) == naive(capacity, sum(sizes), seed)
    assert reservoir.stored == min(capacity, sum(sizes))


def test_every_row_of_a_long_stream_remains_with_the_same_probability() -> None:
    capacity, total, times = 50, 1000, 400
    counts = np.zeros(total)
    for seed in range(times):
        counts[contents(filled(capacity, [130] * 7 + [90], seed))] += 1
    # Rows in ten parts of the stream: the first ones must be as frequent as the last.
    assert counts.sum() == capacity * times
    assert chisquare(counts.reshape(10, -1).sum(1)).pvalue > 1e-3
    assert chisquare(counts).pvalue > 1e-3


def test_pairs_of_rows_remain_independently_of_their_distance() -> None:
    pairs = np.zeros((12, 12))
    for seed in range(4000):
        one, other = contents(filled(2, [5, 7], seed))
        pairs[min(one, other), max(one, other)] += 1
    assert chisquare(pairs[np.triu_indices(12, 1)]).pvalue > 1e-3


def test_draws_are_uniform_over_the_rows_stored_and_whole() -> None:
    reservoir = filled(20, [500])
    drawn: mf.Decisions = reservoir.draw(20_000)
    kept, counts = np.unique(drawn.action, return_counts=True)
    assert sorted(contents(reservoir)) == kept.tolist()
    assert chisquare(counts).pvalue > 1e-3
    expected = numbered(0, 500).columns
    assert drawn.action_mask is not None
    assert drawn.version is not None
    np.testing.assert_array_equal(drawn.obs, expected["obs"][drawn.action])
    np.testing.assert_array_equal(drawn.action_mask, expected["action_mask"][drawn.action])
    np.testing.assert_array_equal(drawn.version, expected["version"][drawn.action])
    assert drawn.rows == 20_000


def test_draws_differ_and_do_not_depend_on_their_division() -> None:
    one, other = filled(40, [100]), filled(40, [100])
    parts = np.concatenate([one.draw(30).action, one.draw(70).action])
    np.testing.assert_array_equal(parts, other.draw(100).action)
    assert (parts[:30] != parts[30:60]).any()


def saved(reservoir: mf.Reservoir, first: int = 0) -> tuple[Any, Any]:
    return from_bytes(to_bytes(reservoir.state())), from_bytes(to_bytes(reservoir.rows(first)))


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_restored_one_continues_to_the_bit(at: int) -> None:
    whole, parts = filled(30, []), filled(30, [])
    files, first = [], 0
    for step in range(8):
        for reservoir in (whole, parts):
            reservoir.insert(numbered(17 * step, 17))
            reservoir.draw(5)
        state, rows = saved(parts, first)
        # Only rows that are new are written; files before the oldest row that is left are removed.
        files = [part for part in [*files, rows] if part and part["stop"] > state["first"]]
        first = state["stop"]
        if step == at:
            parts = mf.Reservoir(30, 1)
            parts.load_state(state, files)
    assert_equal(whole.state(), parts.state())
    assert_equal(whole.rows(0), parts.rows(0))
    np.testing.assert_array_equal(whole.draw(50).obs, parts.draw(50).obs)


def test_rows_that_are_missing_or_another_capacity_are_said() -> None:
    reservoir = filled(10, [8])
    early, late = reservoir.rows(0), filled(10, [8, 30])
    with pytest.raises(mf.CheckpointUnusable, match="some of its 10 rows are missing"):
        mf.Reservoir(10, 1).load_state(late.state(), [early])
    with pytest.raises(mf.CheckpointUnusable, match="expected capacity=11, but it was kept with capacity=10"):
        mf.Reservoir(11, 1).load_state(late.state(), [late.rows(0)])


def test_without_its_rows_it_is_empty_and_samples_what_comes() -> None:
    restored = mf.Reservoir(10, 1)
    restored.load_state(filled(10, [500]).state(), [])
    assert restored.stored == 0
    restored.insert(numbered(500, 7))
    assert contents(restored) == list(range(500, 507))


def test_a_cleared_one_is_a_sample_of_later_rows_alone() -> None:
    counts = np.zeros(40)
    for seed in range(600):
        reservoir = filled(4, [100], seed)
        reservoir.clear()
        reservoir.insert(numbered(100, 40))
        counts[np.array(contents(reservoir)) - 100] += 1
    assert chisquare(counts).pvalue > 1e-3


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    reservoir = filled(5, [8])
    before = reservoir.state()
    batch = numbered(0, 3)
    wide = batch.with_columns(obs=np.zeros((3, 4), np.float32))
    unmasked = mf.Batch({n: c for n, c in batch.columns.items() if n != "action_mask"}, batch.segments)
    for wrong, message in (
        (wide, r"'obs' of the batch is float32\[4\] per row, expected float32\[2\]"),
        (unmasked, "the batch has no 'action_mask', which replay 'reservoir' stores"),
        (numbered(0, 0), "without rows"),
    ):
        with pytest.raises(mf.InvalidInput, match=message):
            reservoir.insert(wrong)
    assert_equal(before, reservoir.state())
    with pytest.raises(mf.InvalidInput, match="is empty"):
        mf.Reservoir(5, 1).draw(1)
    with pytest.raises(mf.InvalidInput, match="at least 1"):
        mf.Reservoir(0, 1)


def test_while_it_fills_up_rows_are_copied_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    longer = reservoir_module._longer

    def counted(array: np.ndarray, used: int, size: int) -> np.ndarray:
        copied.append(used)
        return longer(array, used, size)

    monkeypatch.setattr(reservoir_module, "_longer", counted)
    reservoir = filled(1_000, [1] * 1_200)
    # Four columns and the row numbers, each of which doubles: less than twice as many rows as there are.
    assert sum(copied) < 5 * 2 * 1_000
    held = reservoir.state()["numbers"]
    assert len(held) == 1_000 == len(set(held.tolist()))
