"""Whole runs with Ape-X: the contents of its shards, the ladder of epsilons, and a resume in the middle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.replay.protocol import first_row_of
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.ray.handles import FAR_ABOVE
from tests.driver.kept_runs import assert_equal, kept
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.test_resume import HALF, WHOLE, until
from tests.driver.watching import Seen
from tests.runtime.driven_runs import DrivenRun, driven
from tests.runtime.ray.deadly import kill
from tests.runtime.small_runs import SMALL_PPO, policies, small_run

ALL = (mf.Rule("*", "prey"),)
SMALL_APEX = mf.ApeX(
    batch_agent_steps=16,
    train_every_agent_steps=10,
    learning_starts_agent_steps=240,
    replay_agent_steps=1_500,
    replay_shards=3,
    target_every_updates=20,
    publish_every_updates=3,
)


SMALL_DDPPO = mf.DDPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64)


def apex_run(**changes: Any) -> mf.Experiment:
    return small_run(policies=policies(hunters=SMALL_PPO, prey=replace(SMALL_APEX, **changes)))


def stages(metrics: Any, name: str) -> list[dict[str, Any]]:
    return [metrics["stages"][f"prey/{name} {shard}"] for shard in range(3)]


def test_each_shard_earns_its_draws_and_gets_its_priorities_back(tmp_path: Path) -> None:
    metrics: Any = mf.train(replace(apex_run(), stop=replace(apex_run().stop, env_steps=WHOLE)), tmp_path).metrics
    rows = [figures["rows"] for figures in stages(metrics, "Insert")]
    assert sum(rows) == metrics["policies"]["prey"]["agent_steps_sampled"]
    assert max(rows) - min(rows) <= 200  # a round's rows go to one shard
    earned = [(stored - 80) // 10 for stored in rows]
    assert [figures["items"] for figures in stages(metrics, "Draw")] == earned
    assert [figures["items"] for figures in stages(metrics, "Reprioritize")] == earned
    assert metrics["learners"]["prey"]["updates"] == sum(earned) > 100
    assert metrics["stages"]["prey/InitialPriorities"]["rows"] == sum(rows)
    held = kept(tmp_path)
    for shard in range(3):
        replay = held[f"replay.prey@{shard}"]
        assert replay["stop"] - first_row_of(shard) == rows[shard]
        assert len(np.unique(replay["sampler"]["weights"])) > 50, "rows have priorities of their own"


def test_beside_replicas_on_workers_a_run_that_goes_on_does_what_it_would_have_done(tmp_path: Path) -> None:
    experiment = small_run(policies=policies(hunters=SMALL_DDPPO, prey=SMALL_APEX))
    resumed = resumes_exactly(until(experiment, WHOLE), tmp_path, HALF - 80)
    resumed.assert_mid_way()
    turn = resumed.half["driver"]["flow"]["next_branch"]["prey/Rotation"]
    assert turn != 0, "the next batch was to be for another shard than the first"


def test_the_ladder_is_climbed_by_copies_whoever_plays_them(tmp_path: Path, seen: Seen) -> None:
    unlearned = replace(SMALL_APEX, learning_starts_agent_steps=9_000, replay_agent_steps=9_000)

    def played(workers: int, ladder: float) -> list[Any]:
        rollouts = mf.Rollouts(num_workers=workers, fragment_env_steps=80 // workers)
        algorithms = policies(prey=replace(unlearned, epsilon_ladder=ladder))
        experiment = small_run(env_steps=800, policies=algorithms, mapping=ALL, rollouts=rollouts)
        mf.train(experiment, tmp_path / f"{workers}-{ladder}")
        episodes = [(one.env, one.episode, one.env_steps, tuple(one.returns.items())) for one in seen.episodes]
        seen.receipts.clear()
        return sorted(episodes)

    alone, level = played(1, ladder=3.0), played(1, ladder=0.0)
    assert alone == played(4, ladder=3.0)
    of_copy = [
        ([e for e in alone if e[0] == env_index], [e for e in level if e[0] == env_index]) for env_index in range(4)
    ]
    assert [climbed == flat for climbed, flat in of_copy] == [True, False, False, False]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_run_over_ray_that_has_ended_goes_on(tmp_path: Path) -> None:
    experiment = small_run("ray", env_steps=800, policies=policies(prey=SMALL_APEX), mapping=ALL)
    first = mf.train(experiment, tmp_path)
    result = mf.resume(until(experiment, 1_600), tmp_path)
    assert (first.metrics["env_steps"], result.metrics["env_steps"]) == (800, 1_600)
    updates = [one.metrics["learners"]["prey"]["updates"] for one in (first, result)]
    assert 0 < updates[0] < updates[1]


# -- lost shards ----------------------------------------------------------------------------------------------------


def shard_names(run: DrivenRun) -> list[str]:
    return [name for name in run.parts.replays if name.startswith("prey")]


def test_parts_stand_where_they_belong_inline() -> None:
    with driven(apex_run(), InlineRuntime()) as run:
        assert shard_names(run) == ["prey@0", "prey@1", "prey@2"]
        places = [run.parts.replays[name].place.name for name in shard_names(run)]
        assert places == ["replay prey@0", "replay prey@1", "replay prey@2"]
        assert len(run.parts.of("prey")) == 4


def test_shards_are_kept_and_taken_up_by_name() -> None:
    alone = small_run(policies=policies(prey=SMALL_APEX), mapping=ALL)
    with driven(alone, InlineRuntime()) as run, driven(alone, InlineRuntime()) as again:
        run.play(8)
        kept_now = run.runtime.save({})
        again.runtime.restore(kept_now.files.__getitem__, list(kept_now.files), 0)
        for name in shard_names(run):
            begins, ends = kept_now.replays[name]
            assert {f"replay.{name}", f"rows.{name}.{begins}-{ends}"} <= set(kept_now.files)
            assert ends - begins == run.parts.replays[name].stored > 0
            assert_equal(again.parts.replays[name].state(), run.parts.replays[name].state())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_lost_shard_is_replaced_and_drawn_from_again() -> None:
    algorithm = replace(SMALL_APEX, replay_shards=2, learning_starts_agent_steps=100)
    one_worker = mf.Rollouts(num_workers=1, fragment_env_steps=40)
    experiment = small_run("ray", policies=policies(prey=algorithm), mapping=ALL, rollouts=one_worker)
    with driven(experiment, RayRuntime()) as run:
        run.play(4)
        begins, ends = run.runtime.save({}).replays["prey@1"]
        assert first_row_of(1) <= begins < ends
        kill(run.parts.replays["prey@1"].actor)
        # How soon the loss is noticed depends on the machine.
        for _ in range(20):
            run.play(14)
            drawn = [int(update.row_ids[0]) for update in run.updates["prey"] if update.row_ids is not None]
            if max(drawn) > ends + FAR_ABOVE // 2:
                break
        assert [(fault.kind, fault.where) for fault in run.faults] == [("replays_lost", "replay prey@1")]
        assert {number // first_row_of(1) for number in drawn} == {0, 1}
        assert max(drawn) > ends + FAR_ABOVE // 2, "the successor's rows were to be learned from"
