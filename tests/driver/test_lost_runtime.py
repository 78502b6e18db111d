"""A runtime that is lost ends the run at once, whatever is under way, with one error that says how to resume."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runs.run_state import run_state
from marlflow.runtime.inline import InlineRuntime
from tests.driver.resetting import with_resets
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

ROUND = 80  # env steps
LOSS = "Ray's raylet, process 7, was killed"


class LosesItsRuntime(CartPoleTeam):
    """In one env step another thread says that the runtime is lost."""

    steps_left = 0
    on_loss: Callable[[mf.RuntimeFailed], None] | None = None

    def step(self, actions: dict[str, int]) -> Any:
        LosesItsRuntime.steps_left -= 1
        if self.steps_left == 0:
            assert self.on_loss is not None
            thread = threading.Thread(target=self.on_loss, args=(mf.RuntimeFailed(LOSS),))
            thread.start()
            thread.join()
        return super().step(actions)


@pytest.fixture
def lost_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], mf.Experiment]:
    """`lost_at(100)`: a run whose runtime is lost during that env step."""
    start = InlineRuntime.start

    def starts(runtime: InlineRuntime, spec: Any, on_fault: Any, on_loss: Any, *others: Any) -> Any:
        monkeypatch.setattr(LosesItsRuntime, "on_loss", staticmethod(on_loss))
        return start(runtime, spec, on_fault, on_loss, *others)

    def run(env_step: int) -> mf.Experiment:
        monkeypatch.setattr(LosesItsRuntime, "steps_left", env_step)
        env = mf.Env(LosesItsRuntime, {"max_cycles": 50}, num_envs=4)
        return small_run(env=env, env_steps=10 * ROUND, checkpoint=mf.CheckpointConfig(every_env_steps=4 * ROUND))

    monkeypatch.setattr(InlineRuntime, "start", starts)
    return run


def test_the_error_says_what_happened_and_how_to_resume(
    lost_at: Callable[[int], mf.Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = lost_at(2 * ROUND)
    with pytest.raises(mf.RuntimeFailed) as caught:
        mf.train(experiment, tmp_path)
    hint = f"to resume from {ROUND} env steps: mf.resume(experiment, {str(tmp_path)!r})"
    assert str(caught.value) == f"{LOSS}\n{hint}"
    assert "to resume" not in capsys.readouterr().out, "the error says it once"
    assert (run_state(tmp_path).name, run_state(tmp_path).reason) == ("failed", " ".join(str(caught.value).split()))
    assert mf.resume(experiment, tmp_path).metrics["env_steps"] == 10 * ROUND
    assert run_state(tmp_path).name == "finished"


def test_before_the_first_checkpoint_there_is_nothing_to_go_on_from(
    lost_at: Callable[[int], mf.Experiment], tmp_path: Path
) -> None:
    with pytest.raises(mf.RuntimeFailed) as caught:
        mf.train(lost_at(ROUND // 2), tmp_path)
    assert str(caught.value) == f"{LOSS}\nthere is no checkpoint to resume from"


def test_a_runtime_that_does_not_start_is_one_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise mf.RuntimeFailed("Ray could not be started")

    monkeypatch.setattr(InlineRuntime, "start", fails)
    with pytest.raises(mf.RuntimeFailed, match=r"^Ray could not be started\nthere is no checkpoint to resume from$"):
        mf.train(small_run(), tmp_path)
    assert run_state(tmp_path).reason.startswith("Ray could not be started")


def test_a_process_that_is_lost_between_rounds_leaves_a_report_and_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: Any) -> None:
        raise mf.ActorLost("learner main does not answer")

    ppo = mf.Policy(SMALL_PPO, SMALL)
    log, checkpoint = mf.Log(console="plain", tensorboard=False), mf.CheckpointConfig(every_env_steps=80)
    experiment = with_resets(ppo, ppo, 800, log=log, checkpoint=checkpoint)
    with monkeypatch.context() as patched:
        patched.setattr(InlineRuntime, "reset_learner", lost)
        with pytest.raises(mf.ActorLost, match="learner main does not answer"):
            mf.train(experiment, tmp_path)
    at = reports(tmp_path)[-1]["env_steps"]
    assert 0 < at < 800
    assert f"to resume from {at} env steps: mf.resume(experiment, {str(tmp_path)!r})" in capsys.readouterr().out
    assert run_state(tmp_path).reason == "learner main does not answer"
    assert mf.resume(experiment, tmp_path).metrics["env_steps"] == 800


def test_an_error_after_the_last_report_writes_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: Any) -> None:
        raise mf.ActorLost("rollout worker 0 does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(InlineRuntime, "close_environments", lost)
        with pytest.raises(mf.ActorLost):
            mf.train(small_run(env_steps=160), tmp_path)
    assert [report["env_steps"] for report in reports(tmp_path)] == [160]
