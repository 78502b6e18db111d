"""Workers that do not wait for each other: every row is used once, over checkpoints, a resume, and a worker's death."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from tests.driver.watching import standing
from tests.runtime.ray.deadly import Deadly
from tests.runtime.small_runs import SMALL_DQN, SMALL_PPO, policies, small_run

pytestmark = pytest.mark.usefixtures("ray_session")


def asynchronous(folder: Path) -> mf.Experiment:
    marker = folder / "die"
    return replace(
        small_run("ray", policies=policies(hunters=replace(SMALL_PPO, max_staleness=20), prey=SMALL_DQN)),
        env=mf.Env(partial(Deadly, marker), num_envs=4),
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40, pace="asynchronous"),
        checkpoint=mf.CheckpointConfig(every_env_steps=200),
        stop=mf.Stop(env_steps=800),
    )


def check(metrics: dict[str, Any], env_steps: int) -> None:
    hunters, prey = (standing(metrics, name) for name in ("hunters", "prey"))
    assert metrics["env_steps"] >= env_steps
    inserted = metrics["stages"]["prey/Insert"]["rows"]
    assert inserted == prey["agent_steps_sampled"]  # nothing under way was left behind, and nothing came twice
    starts, per = SMALL_DQN.learning_starts_agent_steps, SMALL_DQN.train_every_agent_steps
    assert prey["updates"] == (inserted - starts) // per
    assert hunters["updates"] > 0
    assert hunters["stale_rows_dropped"] == 0
    assert metrics["stages"]["rollouts/CollectNext"]["items"] >= metrics["env_steps"] / 41


def test_it_comes_to_rest_goes_on_and_outlives_a_worker(tmp_path: Path) -> None:
    experiment = asynchronous(tmp_path)
    (tmp_path / "die").touch()
    first = mf.train(experiment, tmp_path / "run")
    check(first.metrics, 800)
    assert first.metrics["faults"]["workers_lost"] == 1
    again = mf.resume(replace(experiment, stop=mf.Stop(env_steps=1_400)), tmp_path / "run")
    check(again.metrics, 1_400)


def test_no_round_begins_once_those_in_flight_have_reached_the_stop(tmp_path: Path) -> None:
    """The first fragment makes a checkpoint due; while it waits for the second, the stop is reached."""
    experiment = replace(
        small_run("ray", policies=policies(hunters=SMALL_DQN, prey=SMALL_DQN)),
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40, pace="asynchronous"),
        stop=mf.Stop(env_steps=80),
    )
    done = mf.train(experiment, tmp_path)
    assert (done.metrics["env_steps"], done.stopped_by) == (80, "stop.env_steps=80")
