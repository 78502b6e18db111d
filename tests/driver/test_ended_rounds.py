"""A signal ends a round that takes too long for the grace period, and the run is saved."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.runs.saved_runs import newest
from tests.driver.test_graceful_shutdown import Signals
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL_DQN, policies, small_run


class Dawdles(Signals):
    """Takes 20 ms for each env step, which it counts in the file `counted`, if there is one."""

    def __init__(self, counted: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self._counted = counted

    def step(self, actions: dict[str, int]) -> Any:
        time.sleep(0.02)
        if self._counted:
            with open(self._counted, "ab") as file:
                file.write(b".")
        return super().step(actions)


SLOW_ROUND = mf.Rollouts(num_workers=2, fragment_env_steps=100_000)


def test_a_signal_ends_a_slow_round_and_the_run_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(Signals, "made", 490)
    monkeypatch.setattr(Signals, "to_send", (signal.SIGTERM,))
    env = mf.Env(Dawdles, {"max_cycles": 50}, num_envs=4)
    learning = policies(hunters=mf.PPO(batch_agent_steps=20, epochs=1, minibatch_agent_steps=20), prey=SMALL_DQN)
    stop = mf.Stop(10_000, grace_period_s=8.0)
    experiment = small_run(env=env, policies=learning, rollouts=SLOW_ROUND, stop=stop)
    result = mf.train(experiment, tmp_path)
    assert result.stopped_by == "terminated"
    steps = newest(tmp_path).env_steps
    assert steps == result.metrics["env_steps"]
    assert 10 < steps < 1_000, "half of the grace period has 200 env steps"
    # The updates of the round have their time after it.
    assert result.metrics["learners"]["hunters"]["updates"] > 0
    assert "since the run ends: the rest of its rows" not in caplog.text
    more = replace(experiment, rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40), stop=mf.Stop(steps + 80))
    assert mf.resume(more, tmp_path).metrics["env_steps"] == steps + 80


def test_an_evaluation_that_a_signal_ends_is_played_when_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes in the evaluation after the first round, of 80 env steps."""
    monkeypatch.setattr(Signals, "made", 400)
    monkeypatch.setattr(Signals, "to_send", (signal.SIGTERM,))
    env = mf.Env(Dawdles, {"max_cycles": 50}, num_envs=4)
    evaluation = mf.Evaluation(10_000, 1_000, time_share=None)
    experiment = small_run(env=env, evaluation=evaluation, stop=mf.Stop(10_000, grace_period_s=4.0))
    mf.train(experiment, tmp_path)
    assert newest(tmp_path).env_steps == 80
    monkeypatch.setattr(Signals, "to_send", ())
    more = replace(experiment, evaluation=mf.Evaluation(10_000, 1), stop=mf.Stop(320), log=mf.Log(40, console="none"))
    mf.resume(more, tmp_path)
    evaluated = [report["policies"]["prey"].get("eval_env_steps") for report in reports(tmp_path)]
    assert [env_steps for env_steps in evaluated if env_steps is not None] == [160, 320]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_over_ray_a_signal_ends_a_slow_round(tmp_path: Path) -> None:
    counted = tmp_path / "env_steps"
    env = mf.Env(Dawdles, {"max_cycles": 50, "counted": str(counted)}, num_envs=4)
    stop = mf.Stop(10_000, grace_period_s=16.0)
    experiment = small_run("ray", env=env, rollouts=SLOW_ROUND, stop=stop)

    def interrupt() -> None:
        while not counted.exists() or counted.stat().st_size < 50:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    result = mf.train(experiment, tmp_path / "run")
    assert result.stopped_by == "terminated"
    # Each env step that was taken is in the checkpoint.
    assert newest(tmp_path / "run").env_steps == result.metrics["env_steps"] == counted.stat().st_size
