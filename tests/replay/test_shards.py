"""Shards of a replay: row numbers say whose a row is, and rows may bring a priority of their own."""

from __future__ import annotations

import numpy as np
import pytest

import marlflow as mf
from marlflow.replay.protocol import SHARD_SPAN, first_row_of
from tests.replay.windowed import windowed
from tests.stages.test_replays import rows


def make_shard(number: int, capacity: int = 20) -> mf.ReplayBuffer:
    replay = mf.ReplayBuffer(capacity, 1, 0.9, seed=number, sampling=mf.Prioritized(alpha=1.0, epsilon=1e-9))
    replay.begin_at(first_row_of(number))
    return replay


def with_priority(replay: mf.ReplayBuffer, batch: mf.Batch, priority: list[float]) -> mf.Batch:
    return windowed(batch, replay).with_columns(priority=np.array(priority, np.float32))


def test_a_report_goes_back_to_the_shard_that_was_drawn_from() -> None:
    for number in (0, 1, 7):
        shard = make_shard(number)
        for first in range(0, 60, 12):  # the oldest are evicted on the way
            shard.insert(windowed(rows(12, first), shard))
            ids = shard.draw(9).row_id
            assert list(mf.ByShard()(update := mf.Update("team", 9, 1, 0, row_ids=ids))) == [(number, update)]
            shard.reprioritize(ids, np.ones(9))
    nothing = mf.Update("team", 0, 0, 0)
    assert list(mf.ByShard()(nothing)) == [(0, nothing)]
    assert first_row_of(3) == 3 * SHARD_SPAN


def test_new_rows_are_drawn_in_proportion_to_the_priorities_that_they_bring() -> None:
    replay = make_shard(1)
    replay.insert(with_priority(replay, rows(4), [1.0, 0.0, 3.0, 4.0]))
    drawn = replay.draw(8_000).reward.astype(int)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 8_000, [0.125, 0.0, 0.375, 0.5], atol=0.002)


def test_of_rows_that_do_not_fit_the_newest_bring_theirs() -> None:
    replay = make_shard(0, capacity=3)
    parts = [rows(2), rows(2, 2)]
    batch = with_priority(replay, mf.Batch.concat(parts), [9.0, 9.0, 1.0, 3.0])
    replay.insert(batch)
    drawn = replay.draw(4_000).reward.astype(int)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4_000, [0.0, 0.0, 0.25, 0.75], atol=0.002)


def test_a_priority_that_is_none_is_an_error() -> None:
    replay = make_shard(0)
    with pytest.raises(mf.InvalidInput, match="priorities for replay 'replay' must be finite and at least 0"):
        replay.insert(with_priority(replay, rows(2), [1.0, float("nan")]))
