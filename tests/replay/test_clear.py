"""A replay that is emptied: nothing from before is drawn, and late priorities of it are stale."""

from __future__ import annotations

import numpy as np
import pytest

import marlflow as mf
from tests.driver.kept_runs import assert_equal
from tests.replay.conftest import MakeBatch
from tests.replay.windowed import put


def buffer(sampling: mf.Uniform | mf.Prioritized, capacity: int = 20) -> mf.ReplayBuffer:
    return mf.ReplayBuffer(capacity, 2, 0.9, 5, sampling)


@pytest.mark.parametrize("sampling", [mf.Uniform(), mf.Prioritized()])
def test_nothing_from_before_is_drawn(sampling: mf.Uniform | mf.Prioritized, make_batch: MakeBatch) -> None:
    replay = buffer(sampling)
    for first in (0, 10, 20):
        put(replay, make_batch([[1.0] * 8], "t", first_obs=first))
    replay.reprioritize(np.array([20]), np.array([50.0]))
    replay.clear()
    assert replay.stored == 0
    with pytest.raises(mf.InvalidInput, match="is empty"):
        replay.draw(4)
    put(replay, make_batch([[1.0] * 6], "t", first_obs=100))
    drawn = replay.draw(200)
    assert drawn.row_id.min() == 24, "numbers were to go on"
    assert set(drawn.row_id.tolist()) == set(range(24, 30))
    assert drawn.obs[:, 0].min() >= 100
    # New rows have the largest priority so far, and 50 was of before.
    np.testing.assert_allclose(drawn.weight, 1.0)
    replay.reprioritize(np.array([20, 25]), np.array([9.0, 9.0]))
    assert replay.stale_priorities == 1


@pytest.mark.parametrize("sampling", [mf.Uniform(), mf.Prioritized()])
def test_an_emptied_replay_is_saved_and_restored(sampling: mf.Uniform | mf.Prioritized, make_batch: MakeBatch) -> None:
    replay, other, later = (buffer(sampling) for _ in range(3))
    put(replay, make_batch([[1.0] * 8], "t"))
    before = replay.rows(0)
    replay.clear()
    other.load_state(replay.state(), [before, replay.rows(8)])
    assert_equal(other.state(), replay.state())
    for one in (replay, other):
        put(one, make_batch([[1.0] * 6], "t", first_obs=50))
    later.load_state(replay.state(), [before, replay.rows(8)])
    expected = replay.draw(30)
    for one in (other, later):
        drawn = one.draw(30)
        np.testing.assert_array_equal(drawn.obs, expected.obs)
        np.testing.assert_array_equal(drawn.row_id, expected.row_id)
