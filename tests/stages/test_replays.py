"""The stages that belong to a replay say exactly what they did, and leave what passes through them alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Inserted
from marlflow.runtime.stage_chain import InlinePlace
from tests.replay.windowed import put


def make_replay(capacity: int = 50, **arguments: Any) -> mf.ReplayBuffer:
    return mf.ReplayBuffer(capacity, 1, 0.9, seed=0, **{"sampling": mf.Uniform(), **arguments})


def rows(count: int, first: int = 0) -> mf.Batch:
    """One segment that never ends; row i shows i."""
    return mf.Batch(
        {
            "obs": np.arange(first, first + count, dtype=np.float32)[:, None],
            "action": np.zeros(count, np.int64),
            "reward": np.arange(first, first + count, dtype=np.float64),
        },
        {
            "length": np.array([count]),
            "terminated": np.array([False]),
            "truncated": np.array([False]),
            "bootstrap_obs": np.full((1, 1), first + count, np.float32),
        },
    )


@given(counts=st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_insert_says_how_many_rows_came_and_how_many_are_held(counts: list[int]) -> None:
    replay, held = make_replay(), list[int]()
    for count in counts:
        inserted = put(replay, rows(count))
        held.append(count)
        while sum(held) > 50:  # whole segments go, the oldest first
            held.pop(0)
        assert inserted == Inserted(count, sum(held))


def test_a_draw_has_as_many_rows_as_asked_and_only_rows_that_were_inserted() -> None:
    replay = make_replay()
    put(replay, rows(7, first=100))
    drawn = mf.Draw(64)(replay)
    assert drawn.rows == 64
    assert set(drawn.reward.tolist()) <= set(range(100, 107))
    np.testing.assert_array_equal(drawn.next_obs, drawn.obs + 1)


def test_reprioritize_hands_on_the_report_and_tells_the_replay() -> None:
    replay = make_replay(sampling=mf.Prioritized(alpha=1.0, beta=0.0))
    put(replay, rows(4))
    report = mf.Update("hunter", 4, 1, 0, priorities=np.array([0.0, 0.0, 5.0, 0.0]), row_ids=np.arange(4))
    assert mf.Reprioritize()(report, replay) is report
    drawn = mf.Draw(2_000)(replay)
    share = np.bincount(drawn.reward.astype(int), minlength=4) / 2_000
    assert share[2] > 0.9


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [mf.Uniform(), mf.Prioritized(alpha=1.0, beta=0.0)])
def test_rows_whose_error_is_not_finite_are_drawn_least(sampling: Any, wrong: float) -> None:
    """A learner skips the update with them, and the run goes on."""
    replay = make_replay(sampling=sampling)
    put(replay, rows(4))
    mf.Reprioritize()(mf.Update("hunter", 4, 1, 0, priorities=np.array([1.0, wrong]), row_ids=np.array([0, 1])), replay)
    share = np.bincount(mf.Draw(3_000)(replay).reward.astype(int), minlength=4) / 3_000
    expected = [1 / 4] * 4 if isinstance(sampling, mf.Uniform) else [1 / 3, 0, 1 / 3, 1 / 3]
    np.testing.assert_allclose(share, expected, atol=0.05)


def test_a_loss_without_priorities_is_refused_where_rows_are_drawn_by_them() -> None:
    report = mf.Update("hunter", 4, 1, 0, row_ids=np.arange(4))
    skipped = mf.Update("hunter", 4, 0, 0, row_ids=np.arange(4))
    for sampling, is_refused in ((mf.Uniform(), False), (mf.Prioritized(), True)):
        replay = make_replay(sampling=sampling)
        put(replay, rows(4))
        assert mf.Reprioritize()(skipped, replay) is skipped
        # Of several minibatches some were skipped, or the time was over.
        for in_part in (replace(report, updates_skipped=1), replace(report, minibatches_left=2)):
            assert mf.Reprioritize()(in_part, replay) is in_part
        if is_refused:
            with pytest.raises(mf.InvalidInput, match="draws rows by priority, and the loss gives no priorities"):
                mf.Reprioritize()(report, replay)
        else:
            assert mf.Reprioritize()(report, replay) is report


def test_reprioritize_leaves_alone_what_a_report_says_nothing_of() -> None:
    replay = make_replay(sampling=mf.Prioritized(alpha=1.0, beta=0.0))
    put(replay, rows(4))
    before = replay.state()
    report = mf.Update("hunter", 4, 1, 0)
    assert mf.Reprioritize()(report, replay) is report
    after = replay.state()
    np.testing.assert_array_equal(after["sampler"].pop("weights"), before["sampler"].pop("weights"))
    assert after == before


def test_stages_run_where_their_replay_is() -> None:
    place = InlinePlace("replay hunter")
    replay = make_replay(place=place)
    stored = mf.source(lambda: None).then(mf.NStep(1, 0.9), at=replay).then(mf.Insert(), at=replay)
    drawn = mf.source(mf.Draw(1), at=replay).then(mf.Reprioritize(), at=replay)
    assert {id(stage.place) for stage in (stored, stored.inputs[0], drawn, drawn.inputs[0])} == {id(place)}
    assert mf.source(mf.Draw(1), at=make_replay()).place is None


def learn_from_batch(batch: mf.Batch) -> mf.Update:
    raise AssertionError("plans that do not fit never run")


def test_insert_takes_batches_and_draw_makes_transitions() -> None:
    replay = make_replay()

    unfit: Any = learn_from_batch

    def experience() -> mf.Batch:
        raise AssertionError("nothing runs when a plan is checked")

    mf.Plan("store", output=mf.source(experience).then(mf.Insert(), at=replay)).check()
    with pytest.raises(mf.PlanInvalid, match="expects Batch, but 'Draw' gives Transitions"):
        mf.Plan("learn", output=mf.source(mf.Draw(5), at=replay).then(unfit)).check()
    with pytest.raises(mf.PlanInvalid, match="'Insert' gives Inserted"):
        mf.Plan("learn", output=mf.source(experience).then(mf.Insert(), at=replay).then(unfit)).check()


class Owing(mf.SAC):
    """SAC that draws by priorities, and says nothing of who updates them."""

    def sampling(self) -> Any:
        return mf.Prioritized()


def test_priorities_that_nothing_updates_are_a_problem() -> None:
    spaces = Spaces(Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (2,)))
    assert mf.SAC().validate(spaces, mf.MLP()) == []
    (problem,) = Owing().validate(spaces, mf.MLP())
    assert str(problem) == "sac draws by priorities that nothing updates; set reprioritizes = True in its class"
