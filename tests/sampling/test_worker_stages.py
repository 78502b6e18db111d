"""A worker's stages on rows before they leave it: in order, timed, with and without rows, with its acting weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces

import marlflow as mf
from marlflow.batches.items import Weights
from marlflow.env.games import cartpole_team
from marlflow.policy.scripted import RandomActor
from marlflow.sampling.protocol import Request
from marlflow.sampling.sampler_config import WorkerStages
from marlflow.sampling.worker import RolloutWorker
from tests.sampling.workers import rollout_worker


def batch_of(rows: int) -> mf.Batch:
    return mf.Batch({"reward": np.arange(rows, dtype=np.float64)}, {"length": np.array([rows])})


def doubled(batch: mf.Batch) -> mf.Batch:
    return batch.with_columns(reward=2 * batch["reward"])


def raised_by_one(batch: mf.Batch) -> mf.Batch:
    return batch.with_columns(reward=batch["reward"] + 1)


def halved(batch: mf.Batch) -> mf.Batch:
    return batch.only(np.arange(len(batch.segments["length"])) % 2 == 0)


def test_stages_run_in_order_and_each_says_when() -> None:
    worker_stages = WorkerStages("prey")
    worker_stages.stages = {"Double": doubled, "Raise": raised_by_one}
    found, times = worker_stages(batch_of(3))
    assert found["reward"].tolist() == [1, 3, 5]
    assert [spent.rows for spent in times] == [3, 3]
    assert times[0].began_s <= times[0].ended_s
    found, times = worker_stages(batch_of(0))
    assert (found.rows, [spent.rows for spent in times]) == (0, [0, 0])


def test_the_stage_that_raised_is_named() -> None:
    def falls(batch: mf.Batch) -> mf.Batch:
        raise ValueError("mine")

    worker_stages = WorkerStages("prey")
    worker_stages.stages = {"Double": doubled, "Fall": falls}
    with pytest.raises(mf.StageFailed, match="in stage 'Fall' of plan 'prey': Double -> Fall, on the rollout workers"):
        worker_stages(batch_of(1))


def worker(**worker_stages: WorkerStages) -> RolloutWorker:
    mapping = {"cart_0": "one", "cart_1": "one", "cart_2": "other", "cart_3": "other"}
    actors = {name: RandomActor(spaces.Discrete(2)) for name in ("one", "other")}
    return rollout_worker(cartpole_team.parallel_env, range(3), mapping, actors, 7, worker_stages=worker_stages)


def test_a_worker_finishes_the_rows_of_a_policy_and_leaves_the_others() -> None:
    worker_stages = WorkerStages("one")
    worker_stages.stages = {"Double": doubled, "Half": halved}
    plain, finished = worker(), worker(one=worker_stages)
    for number in range(3):
        weights = {"one": Weights(number, None)}
        expected, got = plain.collect(20, Request(weights=weights)), finished.collect(20, Request(weights=weights))
        assert worker_stages.published["one"].version == number
        own = halved(doubled(expected[1]["one"]))
        for name, column in own.columns.items():
            np.testing.assert_array_equal(got[1]["one"].columns[name], column)
        receipt = got[0].policies["one"]
        assert [spent.rows for spent in receipt.stage_times] == [expected[1]["one"].rows, own.rows]
        assert dataclasses.replace(receipt, stage_times=()) == dataclasses.replace(
            expected[0].policies["one"], rows=own.rows
        )
        assert got[0].policies["other"] == expected[0].policies["other"]
        np.testing.assert_array_equal(got[1]["other"]["action"], expected[1]["other"]["action"])
    finished.collect(20)
    assert worker_stages.published["one"].version == 2, "without new weights it goes on with its last"
    for each in (plain, finished):
        each.close()
