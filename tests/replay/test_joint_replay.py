"""The replays of joint rows and sequences against slow references, built on joint segments."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.serialization import Tree
from marlflow.batches.joint_segments import joint_segments
from marlflow.replay.joint import JointSequenceStore, JointStore
from tests.base.joint_episodes import SLOTS, Segment, batches_of
from tests.replay.joint_batches import DISCOUNT, SEATS, K, Reference, SequenceReference, joint_batches, put

SAMPLINGS = st.sampled_from([mf.Uniform(), mf.Prioritized()])
BATCHES = st.lists(joint_batches(), min_size=1, max_size=3)
SIZES = st.tuples(st.integers(1, 5), st.integers(0, 4))  # length, burn-in
# Room for one run at least, which has up to 8 rows.
CAPACITY = st.integers(8 * K, 30 * K)


def make_replay(
    capacity: int, n_step: int = 2, *, seats: dict[str, int] = SEATS, **arguments: Any
) -> mf.StoredReplay[mf.JointTransitions]:
    return mf.StoredReplay(
        JointStore(capacity, seats), n_step, DISCOUNT, **{"seed": 3, "sampling": mf.Uniform(), **arguments}
    )


def make_sequences(
    capacity: int, length: int, burn_in: int, n_step: int = 2, **arguments: Any
) -> mf.StoredReplay[mf.JointSequenceTransitions]:
    store = JointSequenceStore(capacity, SEATS, length, burn_in)
    return mf.StoredReplay(store, n_step, DISCOUNT, **{"seed": 3, "sampling": mf.Uniform(), **arguments})


@settings(max_examples=25)
@given(batches=BATCHES, capacity=CAPACITY, n_step=st.integers(1, 4), sampling=SAMPLINGS)
def test_it_holds_and_draws_what_the_reference_does(
    batches: list[mf.Batch], capacity: int, n_step: int, sampling: mf.Uniform | mf.Prioritized
) -> None:
    replay, reference = make_replay(capacity, n_step, sampling=sampling), Reference(capacity, n_step)
    for batch in batches:
        inserted = put(replay, batch)
        reference.insert(batch)
        assert (inserted.rows, inserted.stored) == (batch.rows, reference.stored)
        assert inserted.stored <= capacity
        drawn = mf.Draw(8 * K + K - 1, gives=mf.JointTransitions)(replay)
        assert isinstance(drawn, mf.JointTransitions)
        assert drawn.count == 8
        assert drawn.rows == sum(int(drawn.columns[f"{policy}:present"].sum()) for policy in SEATS)
        reference.check(drawn)
        ids = drawn.columns["row_id"]
        replay.reprioritize(ids, np.abs(np.sin(ids)))
    assert replay.draw(K - 1).count == 1, "at least one joint row"
    if isinstance(sampling, mf.Uniform):
        assert set(replay.draw(400 * K).columns["row_id"].tolist()) == reference.row_ids()


@settings(max_examples=25)
@given(batches=BATCHES, capacity=CAPACITY, sizes=SIZES, n_step=st.integers(1, 4))
def test_it_holds_and_draws_the_sequences_of_the_reference(
    batches: list[mf.Batch], capacity: int, sizes: tuple[int, int], n_step: int
) -> None:
    replay, reference = make_sequences(capacity, *sizes, n_step), SequenceReference(capacity, *sizes, n_step)
    for batch in batches:
        inserted = put(replay, batch)
        reference.insert(batch)
        assert (inserted.rows, inserted.stored) == (batch.rows, reference.stored)
        drawn = replay.draw(6 * K * sizes[0])
        assert isinstance(drawn, mf.JointSequenceTransitions)
        assert drawn.count == 6
        reference.check(drawn)
    found = replay.draw(300 * K * sizes[0]).columns["row_id"]
    assert set(found.tolist()) == {first for *_, first in reference.sequences}


Drawn = mf.JointTransitions | mf.JointSequenceTransitions


def _go_on(replay: mf.StoredReplay[Any], batch: mf.Batch) -> Drawn:
    put(replay, batch)
    drawn = replay.draw(40)
    ids = drawn.columns["row_id"]
    replay.reprioritize(ids, np.cos(ids) ** 2)
    return drawn


def _same(one: Drawn, two: Drawn) -> None:
    assert one.columns.keys() == two.columns.keys()
    for name, column in one.columns.items():
        np.testing.assert_array_equal(column, two.columns[name], err_msg=name)


@settings(max_examples=20)
@given(batches=BATCHES, capacity=CAPACITY, sampling=SAMPLINGS, in_sequences=st.booleans(), data=st.data())
def test_a_replay_that_loads_what_was_saved_continues_bit_for_bit(
    batches: list[mf.Batch], capacity: int, sampling: Any, in_sequences: bool, data: st.DataObject
) -> None:
    """Only new rows are saved each time; then another replay continues from all that was saved."""

    def make(seed: int) -> Any:
        if in_sequences:
            return make_sequences(capacity, 3, 2, seed=seed, sampling=sampling)
        return make_replay(capacity, seed=seed, sampling=sampling)

    replay, saved = make(1), list[Tree]()
    other = make(3)
    other.load_state(replay.state(), [])
    for batch in batches:
        _same(_go_on(replay, batch), _go_on(other, batch))
        if data.draw(st.booleans()):
            saved.append(copy.deepcopy(replay.rows(saved[-1]["stop"] if saved else 0)))
            other = make(2)
            other.load_state(copy.deepcopy(replay.state()), saved)
            assert other.stored == replay.stored


def _two_rows() -> mf.Batch:
    segments = [Segment("left", 1, 0, 0, [0, 1]), Segment("right", 2, 0, 0, [0, 1])]
    return joint_segments(batches_of(segments), SLOTS)


def test_a_replay_that_was_emptied_counts_from_none() -> None:
    replay, batch = make_replay(10 * K), _two_rows()
    put(replay, batch)
    assert replay.stored == 4
    replay.clear()
    assert replay.stored == 0
    put(replay, batch)
    assert replay.stored == 4
    assert set(replay.draw(100 * K).columns["row_id"].tolist()) == {2, 3}


def test_what_cannot_be_stored_is_refused() -> None:
    replay, batch = make_replay(10 * K), _two_rows()
    with pytest.raises(mf.InvalidInput, match="a segment of 2 joint rows does not fit a replay of 1"):
        put(make_replay(K), batch)
    with pytest.raises(mf.InvalidInput, match="the batch has no 'window_reward': put NStep before Insert"):
        replay.insert(batch)
    windows = mf.NStep(2, DISCOUNT)(batch)
    without = mf.Batch(
        {name: column for name, column in windows.columns.items() if name != "right:obs"}, windows.segments
    )
    with pytest.raises(mf.InvalidInput, match="the batch has no 'right:obs', which a replay stores"):
        replay.insert(without)
    replay.insert(windows)
    for name in ("state", "right:action_mask"):
        without = mf.Batch({n: column for n, column in windows.columns.items() if n != name}, windows.segments)
        with pytest.raises(mf.InvalidInput, match=f"holds rows with '{name}', and the batch is not so"):
            replay.insert(without)
    other = {**windows.columns, "state": windows.columns["state"][:, :2]}
    with pytest.raises(
        mf.InvalidInput, match=r"'state' of the batch is uint8\[2\] per row, expected uint8\[3\] per row"
    ):
        replay.insert(mf.Batch(other, windows.segments))
    with pytest.raises(mf.InvalidInput, match="sequences of 2 joint rows share rows, and do not fit a replay of 1"):
        put(make_sequences(K, 1, 1), batch)
    with pytest.raises(mf.InvalidInput, match="need the column 'memory' of rows, which recurrent policies alone have"):
        mf.SplitSegments(1, 1)(mf.SplitSegments(1, 1)(batch))
    with pytest.raises(mf.InvalidInput, match="capacity_agent_steps is at least 1, not 0"):
        make_replay(0)


def test_what_was_saved_for_other_seats_is_refused() -> None:
    other = make_replay(50, seats={**SEATS, "left": 3})
    with pytest.raises(mf.CheckpointUnusable, match="expected seats of left=3, but it was kept with seats of left=2"):
        other.load_state(make_replay(50).state(), [])
    with pytest.raises(
        mf.CheckpointUnusable, match="expected seats of middle=1, but it was kept with seats of middle=None"
    ):
        make_replay(50, seats={**SEATS, "middle": 1}).load_state(make_replay(50).state(), [])
