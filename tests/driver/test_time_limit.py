"""`stop.time_s` ends a run whatever is under way; no test here waits for longer than it has to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import marlflow as mf
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runs.saved_runs import newest
from tests.runtime.small_runs import small_run

LONG = mf.Rollouts(num_workers=2, fragment_env_steps=400_000)


def test_a_round_that_takes_longer_ends_with_the_time(tmp_path: Path) -> None:
    result = mf.train(small_run(rollouts=LONG, stop=mf.Stop(time_s=0.5)), tmp_path)
    assert result.stopped_by == "stop.time_s=0.5"
    assert 0 < result.metrics["env_steps"] < LONG.fragment_env_steps
    assert newest(tmp_path).env_steps == result.metrics["env_steps"]


def test_an_evaluation_that_would_never_end_does_and_is_not_counted(tmp_path: Path) -> None:
    experiment = small_run(
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40),
        evaluation=mf.Evaluation(episodes=100_000, time_share=None),
        stop=mf.Stop(time_s=0.5, grace_period_s=0.5),
    )
    result = mf.train(experiment, tmp_path)
    assert result.stopped_by == "stop.time_s=0.5"
    assert {policy["eval_return_mean"] for policy in result.metrics["policies"].values()} == {None}


class Hangs(CartPoleTeam):
    """Never comes back from the fiftieth env step of all environments."""

    steps = 0

    def step(self, actions):
        type(self).steps += 1
        while self.steps == 50:
            time.sleep(1_000)
        return super().step(actions)


def test_a_run_whose_environment_hangs_ends_with_the_time_and_a_checkpoint(tmp_path: Path) -> None:
    experiment = small_run(
        env=mf.Env(type("Hangs", (Hangs,), {}), num_envs=4),
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=8),
        stop=mf.Stop(time_s=1.0, grace_period_s=0.3),
    )
    with pytest.raises(mf.EnvironmentHung, match=r"step\(\) was abandoned after .* s: stop.time_s was over") as caught:
        mf.train(experiment, tmp_path)
    assert "env step " in caught.value.where
    assert newest(tmp_path).env_steps > 0
