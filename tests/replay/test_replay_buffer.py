"""The buffer against a slow reference: a list of segments, windows by loops, eviction from the oldest."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable, InvalidInput
from marlflow.base.serialization import Tree
from marlflow.batches.batch import Batch, Transitions
from marlflow.replay import Prioritized, Replay, ReplayBuffer, Uniform
from marlflow.replay.segments import newest_that_fit
from tests.replay.windowed import put, windowed
from tests.sentences import refusals

SAMPLINGS = [Uniform(), Prioritized()]


@dataclass
class Reference:
    """What the buffer must hold, the plain way: one dict per segment."""

    capacity: int
    n_step: int
    discount: float
    segments: list[dict[str, Any]] = field(default_factory=list)
    seen: int = 0

    def insert(self, batch: Batch) -> None:
        row = 0
        for number, length in enumerate(batch.segments["length"].tolist()):
            segment: dict[str, Any] = {name: column[row : row + length] for name, column in batch.columns.items()}
            segment |= {name: column[number] for name, column in batch.segments.items()}
            segment["first"] = self.seen
            self.segments.append(segment)
            row += length
            self.seen += length
            while self.stored > self.capacity:
                self.segments.pop(0)

    @property
    def stored(self) -> int:
        return sum(segment["length"] for segment in self.segments)

    def row_ids(self) -> set[int]:
        return {s["first"] + row for s in self.segments for row in range(s["length"])}

    def transition(self, row_id: int) -> dict[str, Any]:
        segment = next(s for s in self.segments if s["first"] <= row_id < s["first"] + s["length"])
        at, length = row_id - segment["first"], segment["length"]
        reward, steps = 0.0, 0
        while steps < self.n_step and at + steps < length:
            reward += self.discount**steps * segment["reward"][at + steps]
            steps += 1
        ended = at + steps == length
        found = {
            "obs": segment["obs"][at],
            "action": segment["action"][at],
            "reward": reward,
            "discount": 0.0 if ended and segment["terminated"] else self.discount**steps,
            "next_obs": segment["bootstrap_obs"] if ended else segment["obs"][at + steps],
        }
        if "action_mask" in segment:
            found["action_mask"] = segment["action_mask"][at]
            found["next_mask"] = segment["bootstrap_mask"] if ended else segment["action_mask"][at + steps]
        return found

    def check(self, drawn: Transitions) -> None:
        for index, row_id in enumerate(drawn.row_id.tolist()):
            for name, want in self.transition(row_id).items():
                np.testing.assert_allclose(getattr(drawn, name)[index], want, rtol=1e-5, atol=1e-5, err_msg=name)


@st.composite
def batches(draw: st.DrawFn, longest: int, masked: bool) -> Batch:
    segments = draw(st.lists(st.tuples(st.integers(1, longest), st.sampled_from("tuo")), min_size=1, max_size=8))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = np.array([length for length, _ in segments])
    rows, count = int(length.sum()), len(length)
    columns: dict[str, Array] = {
        "obs": generator.integers(0, 256, (rows, 2, 2), np.uint8),
        "action": generator.integers(0, 3, rows),
        "reward": generator.normal(size=rows),
    }
    tables: dict[str, Array] = {
        "length": length,
        "terminated": np.array([end == "t" for _, end in segments]),
        "truncated": np.array([end == "u" for _, end in segments]),
        "bootstrap_obs": generator.integers(0, 256, (count, 2, 2), np.uint8),
    }
    if masked:
        columns["action_mask"] = generator.random((rows, 3)) < 0.5
        tables["bootstrap_mask"] = generator.random((count, 3)) < 0.5
    return Batch(columns, tables)


@given(data=st.data(), capacity=st.integers(1, 40), n_step=st.integers(1, 5), sampling=st.sampled_from(SAMPLINGS))
def test_it_holds_and_draws_what_the_reference_does(
    data: st.DataObject, capacity: int, n_step: int, sampling: Uniform | Prioritized
) -> None:
    masked = data.draw(st.booleans())
    buffer = ReplayBuffer(capacity, n_step, 0.9, seed=3, sampling=sampling)
    reference = Reference(capacity, n_step, 0.9)
    for batch in data.draw(st.lists(batches(capacity, masked), min_size=1, max_size=12)):
        inserted = put(buffer, batch)
        reference.insert(batch)
        assert (inserted.rows, inserted.stored) == (batch.rows, reference.stored)
        assert buffer.stored <= capacity
        drawn = buffer.draw(40)
        assert set(drawn.row_id.tolist()) <= reference.row_ids()
        reference.check(drawn)
        assert (drawn.next_mask is not None) == masked
        buffer.reprioritize(drawn.row_id, np.abs(np.sin(drawn.row_id)))
    if isinstance(sampling, Uniform):
        assert set(buffer.draw(2000).row_id.tolist()) == reference.row_ids()


@pytest.mark.parametrize("per_batch", [1, 30, 200])
def test_many_short_segments_need_many_bootstraps(make_batch: Any, per_batch: int) -> None:
    buffer, reference = ReplayBuffer(150, 2, 0.9, 0, Uniform()), Reference(150, 2, 0.9)
    for first in range(0, 600, per_batch):
        ends = ("tuo" * per_batch)[first % 3 :][:per_batch]
        batch = make_batch([[float(first)]] * per_batch, ends, first_obs=first, masked=True)
        put(buffer, batch)
        reference.insert(batch)
        reference.check(buffer.draw(3))
    assert set(buffer.draw(3000).row_id.tolist()) == reference.row_ids() == set(range(450, 600))


def _go_on(buffer: ReplayBuffer, batch: Batch) -> Transitions:
    put(buffer, batch)
    drawn = buffer.draw(9)
    buffer.reprioritize(drawn.row_id, 9.0 * np.cos(drawn.row_id) ** 2)
    return drawn


def _same(one: Transitions, two: Transitions) -> None:
    for name in ("obs", "action", "reward", "discount", "next_obs", "weight", "row_id", "action_mask", "next_mask"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@given(data=st.data(), capacity=st.integers(5, 40), sampling=st.sampled_from(SAMPLINGS), masked=st.booleans())
def test_a_buffer_that_loads_what_was_kept_goes_on_bit_for_bit(
    data: st.DataObject, capacity: int, sampling: Uniform | Prioritized, masked: bool
) -> None:
    """State is taken again and again, of the rows only those that are new; each time a fresh buffer takes over."""
    buffer, kept = ReplayBuffer(capacity, 3, 0.9, 1, sampling), list[Tree]()
    took_over = ReplayBuffer(capacity, 3, 0.9, 2, sampling)
    took_over.load_state(buffer.state(), [])
    for batch in data.draw(st.lists(batches(capacity, masked), min_size=1, max_size=10)):
        _same(_go_on(buffer, batch), _go_on(took_over, batch))
        assert took_over.state()["stop"] == buffer.state()["stop"]
        if data.draw(st.booleans()):
            kept.append(copy.deepcopy(buffer.rows(kept[-1]["stop"] if kept else 0)))
            state = copy.deepcopy(buffer.state())
            assert buffer.rows(state["stop"]) == {}
            took_over = ReplayBuffer(capacity, 3, 0.9, 3, sampling)
            took_over.load_state(state, kept)
            assert took_over.stored == buffer.stored
            assert took_over.stale_priorities == buffer.stale_priorities


@given(data=st.data(), sampling=st.sampled_from(SAMPLINGS))
def test_without_its_rows_it_begins_empty_and_numbers_on(data: st.DataObject, sampling: Uniform | Prioritized) -> None:
    buffer, other = (ReplayBuffer(20, 2, 0.9, seed, sampling) for seed in (1, 2))
    before = data.draw(st.lists(batches(9, False), min_size=1, max_size=4))
    for batch in before:
        _go_on(buffer, batch)
    other.load_state(buffer.state(), [])
    assert other.stored == 0
    after = data.draw(batches(9, False))
    other.reprioritize(np.array([0]), np.array([9.0]))
    assert other.stale_priorities == buffer.stale_priorities + 1
    seen = sum(batch.rows for batch in before)
    newest = newest_that_fit(after, 20)
    _go_on(other, after)
    assert set(other.draw(500).row_id.tolist()) <= set(range(seen, seen + after.rows))
    assert other.rows(0)["first"] == seen + after.rows - newest.rows
    assert other.state()["stop"] == seen + after.rows


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_successor_of_a_lost_one_numbers_its_rows_far_above(make_batch: Any, sampling: Any) -> None:
    buffer = ReplayBuffer(10, 2, 0.9, seed=0, sampling=sampling)
    put(buffer, make_batch([[1.0] * 4, [2.0] * 6], "to"))
    buffer.begin_at(1_000)
    assert (buffer.stored, buffer.rows(0)) == (0, {})
    buffer.reprioritize(np.arange(10), np.full(10, 5.0))
    assert buffer.stale_priorities == 10
    put(buffer, make_batch([[3.0] * 3], "o"))
    drawn = buffer.draw(60)
    assert set(drawn.row_id.tolist()) == {1_000, 1_001, 1_002}
    np.testing.assert_array_equal(drawn.weight, np.ones(60))
    assert (buffer.rows(4)["first"], buffer.rows(4)["stop"]) == (1_000, 1_003)


def test_a_uniform_draw_takes_every_row_alike(make_batch: Any) -> None:
    buffer = ReplayBuffer(10, 1, 0.9, seed=0, sampling=Uniform())
    put(buffer, make_batch([[0.0] * 4, [0.0] * 3, [0.0] * 3], "tou"))
    count = np.bincount(buffer.draw(100_000).row_id)
    np.testing.assert_allclose(count, 10_000, atol=4 * np.sqrt(100_000 * 0.1 * 0.9))


def test_observations_keep_their_dtype_and_the_rest_is_float32(make_batch: Any) -> None:
    buffer: Replay = ReplayBuffer(10, 1, 0.9, seed=0, sampling=Uniform())
    put(buffer, make_batch([[1.0, 2.0]], "o"))
    drawn = buffer.draw(5)
    assert {drawn.obs.dtype, drawn.next_obs.dtype} == {np.dtype(np.int32)}
    assert {drawn.reward.dtype, drawn.discount.dtype, drawn.weight.dtype} == {np.dtype(np.float32)}
    assert drawn.rows == 5
    np.testing.assert_array_equal(drawn.next_obs[:, 0], drawn.obs[:, 0] + 1)
    assert drawn.action_mask is None


def test_a_draw_is_a_copy(make_batch: Any) -> None:
    buffer = ReplayBuffer(4, 1, 0.9, seed=0, sampling=Uniform())
    put(buffer, make_batch([[1.0, 2.0, 3.0, 4.0]], "o"))
    drawn = buffer.draw(5)
    kept = drawn.obs.copy(), drawn.next_obs.copy()
    put(buffer, make_batch([[1.0, 2.0, 3.0, 4.0]], "o", first_obs=100))
    np.testing.assert_array_equal((drawn.obs, drawn.next_obs), kept)


def test_a_segment_goes_as_a_whole(make_batch: Any) -> None:
    buffer = ReplayBuffer(10, 2, 0.9, seed=0, sampling=Uniform())
    put(buffer, make_batch([[0.0] * 4, [0.0] * 6], "to"))
    assert put(buffer, make_batch([[0.0]], "o")).stored == 7
    assert put(buffer, make_batch([[0.0] * 3], "o")).stored == 10
    assert set(buffer.draw(500).row_id.tolist()) == set(range(4, 14))
    kept = buffer.rows(0)
    np.testing.assert_array_equal(kept["segments"]["stop"], [10, 11, 14])
    np.testing.assert_array_equal(kept["columns"]["segment"], [1] * 6 + [2] + [3] * 3)


def test_rows_that_do_not_fit_come_and_go(make_batch: Any) -> None:
    buffer = ReplayBuffer(5, 1, 0.9, seed=0, sampling=Uniform())
    put(buffer, make_batch([[0.0]], "o"))
    inserted = put(buffer, make_batch([[0.0] * 3, [0.0] * 3, [0.0]], "ooo"))
    assert (inserted.rows, inserted.stored) == (7, 4)
    assert set(buffer.draw(200).row_id.tolist()) == {4, 5, 6, 7}
    np.testing.assert_array_equal(buffer.rows(0)["segments"]["stop"], [7, 8])


def _refused(buffer: ReplayBuffer, batch: Batch, text: str) -> None:
    before = buffer.stored
    with pytest.raises(InvalidInput, match=text):
        buffer.insert(batch)
    assert buffer.stored == before


def test_batches_that_cannot_be_stored_are_refused_whole(make_batch: Any) -> None:
    buffer = ReplayBuffer(5, 1, 0.9, seed=0, sampling=Uniform())
    fits, masked = (windowed(make_batch([[0.0] * 3], "o", masked=masks), buffer) for masks in (False, True))
    long = windowed(make_batch([[0.0], [0.0] * 6], "oo"), buffer)
    _refused(buffer, long, "a segment of 6 agent steps does not fit a replay of 5")
    _refused(buffer, fits.only(np.array([False])), "without rows")
    _refused(buffer, Batch(fits.columns, {**fits.segments, "length": np.array([2])}), r"3 rows .* lengths \[2\]")
    _refused(buffer, make_batch([[0.0] * 3], "o"), "no 'window_reward': put NStep before Insert")
    put(buffer, fits)
    _refused(buffer, masked, "without an action mask")
    _refused(buffer, fits.with_columns(obs=np.zeros((3, 2))), r"'obs' .* float64\[2\] per row, expected int32\[2\]")
    _refused(buffer, fits.with_columns(obs=np.zeros((3, 4), np.int32)), r"int32\[4\] per row, expected int32\[2\]")
    _refused(buffer, Batch(fits.columns, {**fits.segments, "bootstrap_obs": np.zeros((1, 2))}), "'bootstrap_obs'")
    without = Batch(masked.columns, {n: c for n, c in masked.segments.items() if n != "bootstrap_mask"})
    _refused(ReplayBuffer(5, 1, 0.9, 0, Uniform()), without, "no 'bootstrap_mask'")


@pytest.mark.parametrize(("n_step", "discount"), [(3, 0.9), (2, 0.8)])
def test_windows_of_other_terms_are_refused(make_batch: Any, n_step: int, discount: float) -> None:
    buffer = ReplayBuffer(9, 2, 0.9, seed=0, sampling=Uniform())
    others = windowed(make_batch([[0.0] * 4], "t"), ReplayBuffer(9, n_step, discount, 0, Uniform()))
    _refused(buffer, others, "expects windows of n_step=2 and discount=0.9, but others came")


def test_an_empty_replay_cannot_be_drawn_from(make_batch: Any) -> None:
    buffer = ReplayBuffer(5, 1, 0.9, seed=0, sampling=Uniform(), name="prey")
    with pytest.raises(InvalidInput, match="'prey' is empty"):
        buffer.draw(1)
    put(buffer, make_batch([[0.0]], "o"))
    with pytest.raises(InvalidInput, match="at least 1 agent step, not 0"):
        buffer.draw(0)


def test_all_wrong_terms_are_told_at_once() -> None:
    assert len(refusals(InvalidInput, ReplayBuffer, 0, 0, 1.5, seed=0, sampling=Uniform())) == 3


def test_what_is_of_another_replay_is_refused(make_batch: Any) -> None:
    buffer = ReplayBuffer(5, 1, 0.9, seed=0, sampling=Uniform())
    put(buffer, make_batch([[0.0] * 2], "o"))
    early = buffer.rows(0)
    put(buffer, make_batch([[0.0] * 2], "o"))
    late = buffer.rows(2)
    wide = {**late, "columns": {**late["columns"], "obs": np.zeros((2, 7), np.int32)}}
    for other, rows, text in (
        (ReplayBuffer(5, 2, 0.9, 0, Uniform(), "prey"), [early, late], "'prey': expected n_step=2, .* kept with n_ste"),
        (ReplayBuffer(5, 1, 0.8, 0, Uniform()), [], "expected discount=0.8, .* kept with discount=0.9"),
        (ReplayBuffer(3, 1, 0.9, 0, Uniform()), [early, late], "at most capacity_agent_steps=3 rows, but 4 were kept"),
        (ReplayBuffer(5, 1, 0.9, 0, Prioritized()), [], "expected prioritized sampling, .* kept with uniform"),
        (ReplayBuffer(5, 1, 0.9, 0, Uniform()), [late], "expected the rows 0 to 4, but those kept are 2 to 4"),
        (ReplayBuffer(5, 1, 0.9, 0, Uniform()), [early], "expected the rows 0 to 4, but those kept are 0 to 2"),
        (ReplayBuffer(5, 1, 0.9, 0, Uniform()), [early, wide], r"expected rows of .*int32\[2\] .* came .*int32\[7\]"),
    ):
        with pytest.raises(CheckpointUnusable, match=text):
            other.load_state(buffer.state(), rows)
        assert other.stored == 0
