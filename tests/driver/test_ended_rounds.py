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
from tests.runtime.small_runs import small_run


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Signals, "made", 490)
    monkeypatch.setattr(Signals, "to_send", (signal.SIGTERM,))
    env = mf.Env(Dawdles, {"max_cycles": 50}, num_envs=4)
    experiment = small_run(env=env, rollouts=SLOW_ROUND, env_steps=10_000, stop=mf.Stop(10_000, grace_period_s=4.0))
    result = mf.train(experiment, tmp_path)
    assert result.stopped_by == "terminated"
    steps = newest(tmp_path).env_steps
    assert steps == result.metrics["env_steps"]
    assert 10 < steps < 1_000, "half of the grace period has 100 env steps"
    more = replace(experiment, rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40), stop=mf.Stop(steps + 80))
    assert mf.resume(more, tmp_path).metrics["env_steps"] == steps + 80


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
