"""Runs with separately computed gradients are resumed bit for bit, queued gradients included."""

from __future__ import annotations

from pathlib import Path

import pytest

import marlflow as mf
from tests.driver.resumed_runs import resumes_exactly
from tests.runtime.small_runs import policies, small_run

HALF, WHOLE = 400, 880
ASYNCHRONOUS = mf.Rollouts(num_workers=2, fragment_env_steps=40, pace="asynchronous")
FALLING = mf.Linear(1e-2, 0.0, agent_steps=3_000)
RUNS = {
    "averaged": small_run(
        env_steps=WHOLE,
        policies=policies(hunters=mf.A2C(batch_agent_steps=100, microbatches=4), prey=mf.A3C(learning_rate=FALLING)),
    ),
    "asynchronous": small_run(
        env_steps=WHOLE,
        policies=policies(
            hunters=mf.IMPALA(batch_agent_steps=250),
            prey=mf.APPO(batch_agent_steps=200, minibatch_agent_steps=50, learning_rate=FALLING),
        ),
        rollouts=ASYNCHRONOUS,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_goes_on_does_what_it_would_have_done(name: str, tmp_path: Path) -> None:
    resumed = resumes_exactly(RUNS[name], tmp_path, HALF)
    assert resumed.half["driver"]["flow"]["held"], "something was to be half gathered"
    assert all(resumed.metrics["learners"][policy]["updates"] for policy in RUNS[name].policies)
