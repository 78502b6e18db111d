"""The replay of sequences against a slow reference: each sequence copied out of its segment by itself."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.serialization import Tree
from marlflow.batches.sequences import SequenceTransitions
from marlflow.replay.sequences import SequenceReplay
from tests.replay.sequence_batches import DISCOUNT, Reference, batches, put, segments_of

SIZES = st.tuples(st.integers(1, 6), st.integers(0, 8), st.integers(1, 4))  # length, burn-in, n-step


def make_replay(capacity: int, length: int, burn_in: int, n_step: int = 2, **arguments: Any) -> SequenceReplay:
    return SequenceReplay(
        capacity, length, burn_in, n_step, DISCOUNT, **{"seed": 3, "sampling": mf.Prioritized(), **arguments}
    )


@given(data=st.data(), capacity=st.integers(1, 40), sizes=SIZES, masked=st.booleans())
def test_it_holds_and_draws_what_the_reference_does(
    data: st.DataObject, capacity: int, sizes: tuple[int, int, int], masked: bool
) -> None:
    replay, reference = make_replay(capacity, *sizes, sampling=mf.Uniform()), Reference(capacity, *sizes)
    for batch in data.draw(st.lists(batches(capacity, masked), min_size=1, max_size=8)):
        inserted = put(replay, batch)
        reference.insert(batch)
        assert (inserted.rows, inserted.stored) == (batch.rows, reference.stored)
        drawn = mf.Draw(6 * sizes[0], gives=SequenceTransitions)(replay)
        assert isinstance(drawn, SequenceTransitions)
        assert drawn.count == 6
        reference.check(drawn)
        assert (drawn.mask is not None) == masked
    found = replay.draw(400 * sizes[0]).row_id.tolist()
    assert set(found) == {sequence["first"] for sequence in reference.sequences}


@given(batch=batches(30, masked=True), sizes=SIZES)
def test_each_row_is_in_exactly_one_sequence_and_each_sequence_in_one_segment(
    batch: mf.Batch, sizes: tuple[int, int, int]
) -> None:
    length, burn_in, _ = sizes
    parts = mf.SplitSegments(length, burn_in)(batch)
    for name, column in parts.columns.items():
        np.testing.assert_array_equal(column, batch.columns[name])
    made = iter(segments_of(parts))
    for segment in segments_of(batch):
        at = 0
        while at < segment["length"]:
            part = next(made)
            rows, last = int(part["length"]), at + part["length"] == segment["length"]
            assert 1 <= rows <= length
            assert part["burn_in"] == min(at, burn_in)
            assert part["lane"] == segment["lane"]
            np.testing.assert_array_equal(part["memory"], segment["memory"][at - part["burn_in"]])
            assert part["terminated"] == (segment["terminated"] and last)
            assert part["truncated"] == (segment["truncated"] and last)
            assert part["carried"] == (segment["carried"] and at == 0)
            np.testing.assert_array_equal(
                part["bootstrap_obs"], segment["bootstrap_obs"] if last else segment["obs"][at + rows]
            )
            at += rows
    assert next(made, None) is None


def _go_on(replay: SequenceReplay, batch: mf.Batch) -> SequenceTransitions:
    put(replay, batch)
    drawn = replay.draw(20)
    replay.reprioritize(drawn.row_id, np.cos(drawn.row_id) ** 2)
    return drawn


def _same(one: SequenceTransitions, two: SequenceTransitions) -> None:
    for name in (field.name for field in fields(one)):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)


@given(
    data=st.data(), capacity=st.integers(5, 40), sizes=SIZES, sampling=st.sampled_from([mf.Uniform(), mf.Prioritized()])
)
def test_a_replay_that_loads_what_was_kept_goes_on_bit_for_bit(
    data: st.DataObject, capacity: int, sizes: tuple[int, int, int], sampling: Any
) -> None:
    """State is taken again and again, of the rows only those that are new; each time a fresh replay takes over."""
    replay, kept = make_replay(capacity, *sizes, seed=1, sampling=sampling), list[Tree]()
    took_over = make_replay(capacity, *sizes, sampling=sampling)
    took_over.load_state(replay.state(), [])
    for batch in data.draw(st.lists(batches(capacity), min_size=1, max_size=8)):
        _same(_go_on(replay, batch), _go_on(took_over, batch))
        if data.draw(st.booleans()):
            kept.append(copy.deepcopy(replay.rows(kept[-1]["stop"] if kept else 0)))
            state = copy.deepcopy(replay.state())
            took_over = make_replay(capacity, *sizes, seed=2, sampling=sampling)
            took_over.load_state(state, kept)
            assert took_over.stored == replay.stored


def _batch(length: int, count: int = 1) -> mf.Batch:
    rows = length * count
    columns = {
        "obs": np.arange(1.0, rows + 1, dtype=np.float32)[:, None],
        "action": np.zeros(rows, np.int64),
        "reward": np.zeros(rows),
        "version": np.zeros(rows, np.int64),
        "memory": np.zeros((rows, 1), np.float32),
    }
    ends = {"terminated": np.zeros(count, bool), "bootstrap_obs": np.zeros((count, 1), np.float32)}
    return mf.Batch(columns, {"length": np.full(count, length), **ends})


def test_a_priority_is_a_sequences_and_counts_until_it_is_evicted() -> None:
    replay = make_replay(24, 4, 2, sampling=mf.Prioritized(alpha=1.0))
    put(replay, _batch(8, count=3))
    replay.reprioritize(np.array([0, 4, 8, 12, 16, 20]), np.array([0.0, 0.0, 3.0, 0.0, 1.0, 0.0]))
    drawn = replay.draw(4 * 4000)
    assert set(drawn.row_id.tolist()) == {8, 16}
    assert np.mean(drawn.row_id == 8) == pytest.approx(0.75, abs=0.01)
    ratio = drawn.weight[drawn.row_id == 16][0] / drawn.weight[drawn.row_id == 8][0]
    assert ratio == pytest.approx(3.0**0.4, rel=1e-4)
    put(replay, _batch(3))
    replay.reprioritize(np.array([0, 4, 8]), np.array([9.0, 9.0, 3.0]))
    assert replay.stale_priorities == 2


def test_a_successor_of_a_lost_one_knows_none_of_its_names() -> None:
    replay = make_replay(24, 4, 2)
    put(replay, _batch(8, count=3))
    replay.begin_at(1_000)
    assert (replay.stored, replay.rows(0)) == (0, {})
    put(replay, _batch(8))
    replay.reprioritize(np.array([0, 4, 1_004]), np.array([5.0, 5.0, 0.0]))
    assert replay.stale_priorities == 2
    assert set(replay.draw(400).row_id.tolist()) == {1_000}


def test_what_cannot_be_stored_is_refused() -> None:
    replay = make_replay(10, 4, 2)
    with pytest.raises(mf.InvalidInput, match="sequences of 12 agent steps share rows, and do not fit a replay of 10"):
        put(replay, _batch(12))
    with pytest.raises(mf.InvalidInput, match="length=4 and burn_in=2, but others came: give SplitSegments the same"):
        replay.insert(_windowed(replay, mf.SplitSegments(5, 2)(_batch(5))))
    with pytest.raises(mf.InvalidInput, match=r"length=4 and burn_in=2, but others came"):
        replay.insert(_windowed(replay, mf.SplitSegments(4, 3)(_batch(8))))
    with pytest.raises(mf.InvalidInput, match="no 'burn_in', which this replay stores"):
        replay.insert(_windowed(replay, _batch(4)))
    with pytest.raises(mf.InvalidInput, match="need the column 'memory' of rows, which recurrent policies alone have"):
        mf.SplitSegments(4, 2)(mf.SplitSegments(4, 2)(_batch(4)))
    assert replay.stored == 0


def _windowed(replay: SequenceReplay, batch: mf.Batch) -> mf.Batch:
    return mf.NStep(2, DISCOUNT)(batch)


@pytest.mark.parametrize(("length", "burn_in"), [(0, 0), (3, -1)])
def test_sizes_that_are_none_are_refused(length: int, burn_in: int) -> None:
    with pytest.raises(mf.InvalidInput, match=r"sequence_length|burn_in"):
        make_replay(9, length, burn_in)
    with pytest.raises(mf.InvalidInput, match="sequences: "):
        mf.SplitSegments(length, burn_in)


def test_what_was_kept_with_other_sizes_is_refused() -> None:
    replay = make_replay(10, 4, 2)
    for other, text in (
        (make_replay(10, 5, 2), "expected length=5, but it was kept with length=4"),
        (make_replay(10, 4, 0), "expected burn_in=0, but it was kept with burn_in=2"),
    ):
        with pytest.raises(mf.CheckpointUnusable, match=text):
            other.load_state(replay.state(), [])
