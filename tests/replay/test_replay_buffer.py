"""The buffer against a slow reference: a list of segments, windows by loops, eviction from the oldest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.errors import InvalidInput
from marlflow.replay import Prioritized, Replay, ReplayBuffer, Uniform

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
        inserted = buffer.insert(batch)
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
        buffer.insert(batch)
        reference.insert(batch)
        reference.check(buffer.draw(3))
    assert set(buffer.draw(3000).row_id.tolist()) == reference.row_ids() == set(range(450, 600))


@settings(max_examples=30)
@given(data=st.data(), capacity=st.integers(5, 40), sampling=st.sampled_from(SAMPLINGS))
def test_a_buffer_that_loads_a_state_goes_on_bit_for_bit(
    data: st.DataObject, capacity: int, sampling: Uniform | Prioritized
) -> None:
    def go_on(buffer: ReplayBuffer, more: list[Batch]) -> list[Transitions]:
        drawn = []
        for batch in more:
            buffer.insert(batch)
            drawn.append(buffer.draw(9))
            buffer.reprioritize(drawn[-1].row_id, np.cos(drawn[-1].row_id) ** 2)
        return drawn

    before, after = (data.draw(st.lists(batches(capacity, True), max_size=6)) for _ in range(2))
    buffer, other = (ReplayBuffer(capacity, 3, 0.9, seed, sampling) for seed in (1, 2))
    go_on(buffer, before)
    other.load_state(buffer.state())
    assert other.stored == buffer.stored
    for one, two in zip(go_on(buffer, after), go_on(other, after), strict=True):
        for name in ("obs", "action", "reward", "discount", "next_obs", "weight", "row_id", "action_mask", "next_mask"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_a_uniform_draw_takes_every_row_alike(make_batch: Any) -> None:
    buffer = ReplayBuffer(10, 1, 0.9, seed=0, sampling=Uniform())
    buffer.insert(make_batch([[0.0] * 4, [0.0] * 3, [0.0] * 3], "tou"))
    count = np.bincount(buffer.draw(100_000).row_id)
    np.testing.assert_allclose(count, 10_000, atol=4 * np.sqrt(100_000 * 0.1 * 0.9))


def test_observations_keep_their_dtype_and_the_rest_is_float32(make_batch: Any) -> None:
    buffer: Replay = ReplayBuffer(10, 1, 0.9, seed=0, sampling=Uniform())
    buffer.insert(make_batch([[1.0, 2.0]], "o"))
    drawn = buffer.draw(5)
    assert {drawn.obs.dtype, drawn.next_obs.dtype} == {np.dtype(np.int32)}
    assert {drawn.reward.dtype, drawn.discount.dtype, drawn.weight.dtype} == {np.dtype(np.float32)}
    assert drawn.rows == 5
    np.testing.assert_array_equal(drawn.next_obs[:, 0], drawn.obs[:, 0] + 1)
    assert drawn.action_mask is None


def test_a_draw_is_a_copy(make_batch: Any) -> None:
    buffer = ReplayBuffer(4, 1, 0.9, seed=0, sampling=Uniform())
    buffer.insert(make_batch([[1.0, 2.0, 3.0, 4.0]], "o"))
    drawn = buffer.draw(5)
    kept = drawn.obs.copy(), drawn.next_obs.copy()
    buffer.insert(make_batch([[1.0, 2.0, 3.0, 4.0]], "o", first_obs=100))
    np.testing.assert_array_equal((drawn.obs, drawn.next_obs), kept)


def test_a_segment_goes_as_a_whole(make_batch: Any) -> None:
    buffer = ReplayBuffer(10, 2, 0.9, seed=0, sampling=Uniform())
    buffer.insert(make_batch([[0.0] * 4, [0.0] * 6], "to"))
    assert buffer.insert(make_batch([[0.0]], "o")).stored == 7
    assert buffer.insert(make_batch([[0.0] * 3], "o")).stored == 10
    assert set(buffer.draw(500).row_id.tolist()) == set(range(4, 14))
    arrays = buffer.state().arrays
    np.testing.assert_array_equal(arrays["segments.stop"], [10, 11, 14])
    np.testing.assert_array_equal(arrays["rows.segment"], [1] * 6 + [2] + [3] * 3)


def test_rows_that_do_not_fit_come_and_go(make_batch: Any) -> None:
    buffer = ReplayBuffer(5, 1, 0.9, seed=0, sampling=Uniform())
    buffer.insert(make_batch([[0.0]], "o"))
    inserted = buffer.insert(make_batch([[0.0] * 3, [0.0] * 3, [0.0]], "ooo"))
    assert (inserted.rows, inserted.stored) == (7, 4)
    assert set(buffer.draw(200).row_id.tolist()) == {4, 5, 6, 7}
    np.testing.assert_array_equal(buffer.state().arrays["segments.stop"], [7, 8])


def _refused(buffer: ReplayBuffer, batch: Batch, text: str) -> None:
    before = buffer.stored
    with pytest.raises(InvalidInput, match=text):
        buffer.insert(batch)
    assert buffer.stored == before


def test_batches_that_cannot_be_stored_are_refused_whole(make_batch: Any) -> None:
    buffer = ReplayBuffer(5, 1, 0.9, seed=0, sampling=Uniform())
    fits = make_batch([[0.0] * 3], "o")
    _refused(buffer, make_batch([[0.0], [0.0] * 6], "oo"), "a segment of 6 agent steps does not fit a replay of 5")
    _refused(buffer, fits.only(np.array([False])), "without rows")
    _refused(buffer, Batch(fits.columns, {**fits.segments, "length": np.array([2])}), r"3 rows .* lengths \[2\]")
    buffer.insert(fits)
    _refused(buffer, make_batch([[0.0]], "o", masked=True), "without an action mask")
    _refused(buffer, fits.with_columns(obs=np.zeros((3, 2))), r"'obs' .* float64\[2\] per row, expected int32\[2\]")
    _refused(buffer, fits.with_columns(obs=np.zeros((3, 4), np.int32)), r"int32\[4\] per row, expected int32\[2\]")
    _refused(buffer, Batch(fits.columns, {**fits.segments, "bootstrap_obs": np.zeros((1, 2))}), "'bootstrap_obs'")
    masked = make_batch([[0.0]], "o", masked=True)
    without = Batch(masked.columns, {n: c for n, c in masked.segments.items() if n != "bootstrap_mask"})
    _refused(ReplayBuffer(5, 1, 0.9, 0, Uniform()), without, "no 'bootstrap_mask'")


def test_an_empty_replay_cannot_be_drawn_from(make_batch: Any) -> None:
    buffer = ReplayBuffer(5, 1, 0.9, seed=0, sampling=Uniform(), name="prey")
    with pytest.raises(InvalidInput, match="'prey' is empty"):
        buffer.draw(1)
    buffer.insert(make_batch([[0.0]], "o"))
    with pytest.raises(InvalidInput, match="at least 1 agent step, not 0"):
        buffer.draw(0)


def test_all_wrong_terms_are_told_at_once() -> None:
    with pytest.raises(InvalidInput) as told:
        ReplayBuffer(0, 0, 1.5, seed=0, sampling=Uniform())
    assert len(told.value.problems) == 3


def test_a_state_of_another_kind_is_refused(make_batch: Any) -> None:
    buffer = ReplayBuffer(5, 1, 0.9, seed=0, sampling=Uniform())
    buffer.insert(make_batch([[0.0] * 4], "o"))
    for other, text in (
        (ReplayBuffer(5, 2, 0.9, 0, Uniform()), "kept with n_step=1"),
        (ReplayBuffer(3, 1, 0.9, 0, Uniform()), "4 agent steps kept do not fit"),
        (ReplayBuffer(5, 1, 0.9, 0, Prioritized()), "another kind of sampling"),
    ):
        with pytest.raises(InvalidInput, match=text):
            other.load_state(buffer.state())
