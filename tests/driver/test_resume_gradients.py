"""Runs whose gradients are found apart go on bit for bit, gradients that wait included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlflow.algorithms.a2c import A2C
from marlflow.algorithms.a3c import A3C
from marlflow.algorithms.appo import APPO
from marlflow.algorithms.impala import IMPALA
from marlflow.base.schedules import Linear
from marlflow.config.experiment import CheckpointConfig, Experiment, Rollouts, Stop
from marlflow.driver.train import resume, train
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.watching import reports
from tests.runtime.small_runs import policies, small_run

HALF, WHOLE = 400, 880
ASYNCHRONOUS = Rollouts(num_workers=2, fragment_env_steps=40, pace="asynchronous")
FALLING = Linear(1e-2, 0.0, agent_steps=3_000)
RUNS = {
    "averaged": small_run(
        policies=policies(hunters=A2C(batch_agent_steps=100, microbatches=4), prey=A3C(learning_rate=FALLING))
    ),
    "asynchronous": small_run(
        policies=policies(
            hunters=IMPALA(batch_agent_steps=250),
            prey=APPO(batch_agent_steps=200, minibatch_agent_steps=50, learning_rate=FALLING),
        ),
        rollouts=ASYNCHRONOUS,
    ),
}


def until(experiment: Experiment, env_steps: int) -> Experiment:
    return replace(experiment, stop=Stop(env_steps=env_steps), checkpoint=CheckpointConfig(every_env_steps=None))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_goes_on_does_what_it_would_have_done(name: str, tmp_path: Path) -> None:
    experiment, whole, parts = RUNS[name], tmp_path / "whole", tmp_path / "parts"
    train(until(experiment, WHOLE), whole)
    train(until(experiment, HALF), parts)
    half = kept(parts)
    assert half["driver"]["flow"]["held"], "something was to be half gathered"
    assert resume(until(experiment, WHOLE), parts).metrics["env_steps"] >= WHOLE
    assert_equal(without_times(reports(whole)), without_times(reports(parts)))
    assert_equal(kept(whole), kept(parts))
    assert all(
        trained["learners"][policy]["updates"] for trained in reports(whole)[-1:] for policy in experiment.policies
    )
