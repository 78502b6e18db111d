"""A run that is done is done, whatever its environments do when they are closed; so are looks at one."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import marlflow as mf
from marlflow.check_env import speed
from marlflow.checks.validation import ready
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runs.saved_runs import newest
from marlflow.sampling import watchdog
from tests.driver.watching import reports
from tests.runtime.small_runs import small_run

TIMEOUT_S = 0.2


class CloseRaises(CartPoleTeam):
    def close(self) -> None:
        raise OSError("the simulator is gone")


class CloseHangs(CartPoleTeam):
    def close(self) -> None:
        threading.Event().wait()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is up soon."""
    monkeypatch.setattr(watchdog, "CLOSE_TIMEOUT_S", TIMEOUT_S)


def run(env: type[CartPoleTeam], runtime: Literal["inline", "ray"] = "inline") -> mf.Experiment:
    """With an evaluation at its end, whose environments are closed too."""
    made = small_run(runtime, 160, evaluation=mf.Evaluation(every_env_steps=10_000, episodes=1))
    return replace(made, env=mf.Env(env, {"max_cycles": 20}, num_envs=2))


@pytest.mark.parametrize("env", [CloseRaises, CloseHangs])
def test_a_run_that_is_done_says_and_counts_what_cannot_be_closed(env: type[CartPoleTeam], tmp_path: Path) -> None:
    result = mf.train(run(env), tmp_path)
    assert result.stopped_by == "stop.env_steps=160"
    assert newest(tmp_path).env_steps == 160
    before, after = reports(tmp_path)[-2:]
    assert (before["faults"]["closes_failed"], after["faults"]["closes_failed"]) == (0, 3)
    assert before["env_steps"] == after["env_steps"]


def test_beyond_its_budget_the_run_ends_with_an_error_and_everything_kept(tmp_path: Path) -> None:
    with pytest.raises(mf.BudgetExceeded, match=r"close\(\) raised OSError: .* gone\nthat was closes_failed 1"):
        mf.train(replace(run(CloseRaises), faults=mf.Faults(closes_failed=0)), tmp_path)
    assert newest(tmp_path).env_steps == 160
    assert reports(tmp_path)[-1]["faults"]["closes_failed"] == 3


@pytest.mark.parametrize("env", [CloseRaises, CloseHangs])
def test_a_look_at_one_that_cannot_be_closed_only_says_so(
    env: type[CartPoleTeam], caplog: pytest.LogCaptureFixture
) -> None:
    assert ready(run(env)).spec.num_envs == 2
    assert "environment Close" in caplog.text
    assert "close()" in caplog.text


@pytest.mark.parametrize("env", [CloseRaises, CloseHangs])
def test_check_env_finds_it_once(env: type[CartPoleTeam], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_ROUND_S", 0.01)
    trial = mf.check_environment(mf.Env(env, {"max_cycles": 20}, num_envs=2), 2)
    (problem,) = trial.problems
    assert "close() " in problem.what
    assert trial.speed is not None


def test_if_one_cannot_be_made_those_that_were_are_closed(tmp_path: Path) -> None:
    opened: list[CartPoleTeam] = []
    closed: list[CartPoleTeam] = []

    class Counted(CartPoleTeam):
        def close(self) -> None:
            closed.append(self)

    def make() -> CartPoleTeam:
        # Two of each worker, after those of looks at it, which are closed.
        if len(opened) - len(closed) == 3:
            raise RuntimeError("no license for a fourth")
        opened.append(Counted())
        return opened[-1]

    experiment = small_run(env=mf.Env(make, num_envs=4, batched=False))
    with pytest.raises(RuntimeError, match="no license for a fourth"):
        mf.train(experiment, tmp_path)
    assert len(opened) == len(closed) > 3
