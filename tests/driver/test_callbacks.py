"""Callbacks and sinks in whole runs: what they are told, how they stop a run, and what their failures cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.driver.callbacks import MOST_FAILURES_IN_A_ROW
from marlflow.runtime.saved_runs import newest
from tests.driver.breaking_environments import Raises
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL_PPO, policies, small_run

ROUND = 80


class Listener(mf.Callback):
    """Remembers everything that it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.told: Mapping[str, Any] | None = None
        for hook in ("began", "reported", "evaluated", "saved", "fault", "ended"):
            setattr(self, hook, lambda what, hook=hook: self.heard.append((hook, what)))

    def state(self) -> Mapping[str, Any]:
        return {"heard": len(self.heard)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.told = state

    def of(self, hook: str) -> list[Any]:
        return [what for name, what in self.heard if name == hook]


def run(callbacks: Mapping[str, mf.Callback | None], **changes: Any) -> mf.Experiment:
    usual: dict[str, Any] = {
        "env_steps": 6 * ROUND,
        "policies": policies(hunters=SMALL_PPO, prey=mf.Random()),
        "log": mf.Log(every_env_steps=2 * ROUND, console="plain", tensorboard=False),
        "checkpoint": mf.CheckpointConfig(every_env_steps=2 * ROUND),
        "evaluation": mf.Evaluation(4 * ROUND, 2),
    }
    return replace(small_run(**{**usual, **changes}), callbacks=callbacks)


def test_a_callback_is_told_all_that_happens_in_order(tmp_path: Path) -> None:
    listener = Listener()
    result = mf.train(run({"listener": listener}), tmp_path)
    names = [name for name, _ in listener.heard]
    assert names[0] == "began"
    assert names[-1] == "ended"
    (info,) = listener.of("began")
    assert (info.resumed, info.run_dir, len(info.id)) == (None, tmp_path, 8)
    assert info.configuration["policies"]["hunters"]["algorithm"]["epochs"] == SMALL_PPO.epochs
    assert [record["env_steps"] for record in listener.of("reported")] == [r["env_steps"] for r in reports(tmp_path)]
    assert [path.name for path in listener.of("saved")][-1] == str(6 * ROUND)
    evaluations = listener.of("evaluated")
    assert [one.env_steps for one in evaluations] == [ROUND, 4 * ROUND, 6 * ROUND]
    assert evaluations[-1].policies["prey"]["eval_episodes"] == 2
    assert all(one.began_s <= one.ended_s for one in evaluations)
    (end,) = listener.of("ended")
    assert (end.stopped_by, end.error) == (result.stopped_by, None)
    assert end.metrics["env_steps"] == 6 * ROUND


class StopAfter(mf.Callback):
    """Stops the run in one of its calls."""

    def __init__(self, hook: str, number: int = 2) -> None:
        self._left = number
        setattr(self, hook, self._stop)

    def _stop(self, _what: object) -> mf.StopRun | None:
        self._left -= 1
        return mf.StopRun("enough") if self._left == 0 else None


@pytest.mark.parametrize("hook", ["reported", "saved", "evaluated"])
def test_a_callback_stops_the_run_with_a_checkpoint_from_which_it_resumes(hook: str, tmp_path: Path) -> None:
    result = mf.train(run({"early": StopAfter(hook), "other": Listener(), "none": None}), tmp_path)
    assert result.stopped_by == "callbacks.early: enough"
    assert ROUND < result.metrics["env_steps"] == newest(tmp_path).env_steps < 6 * ROUND
    again = mf.resume(run({}), tmp_path)
    assert again.metrics["env_steps"] == 6 * ROUND


def test_a_callback_may_stop_the_run_before_its_first_round(tmp_path: Path) -> None:
    result = mf.train(run({"early": StopAfter("began", 1)}), tmp_path)
    assert (result.stopped_by, result.metrics["env_steps"]) == ("callbacks.early: enough", 0)


class Broken(mf.Callback):
    """Raises in some of its calls, the first `times`."""

    def __init__(self, *hooks: str, times: int = 10**9) -> None:
        self.calls: list[str] = []
        self._times = times
        for hook in hooks:
            setattr(self, hook, lambda *_what, hook=hook: self._raise(hook))

    def _raise(self, hook: str) -> Any:
        self.calls.append(hook)
        if len(self.calls) <= self._times:
            raise RuntimeError("its server is away")
        return {} if hook == "state" else None


@pytest.mark.parametrize("hook", ["began", "reported", "evaluated", "saved", "ended", "state"])
def test_a_callback_that_raises_is_a_counted_fault_and_others_are_called(
    hook: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = Listener()
    result = mf.train(run({"broken": Broken(hook, times=1), "listener": listener}), tmp_path)
    assert result.stopped_by == f"stop.env_steps={6 * ROUND}"
    # The end comes after the last report.
    assert result.metrics["faults"]["callbacks_failed"] == (0 if hook == "ended" else 1)
    assert f"{hook}() raised RuntimeError: its server is away" in capsys.readouterr().out
    assert len(listener.of("ended")) == 1
    assert "test_callbacks.py" in (tmp_path / "run.log").read_text()


def test_after_some_failures_in_a_row_a_callback_is_only_told_the_end(tmp_path: Path) -> None:
    broken = Broken("reported", "ended")
    log = mf.Log(every_env_steps=ROUND, console="none", tensorboard=False)
    result = mf.train(run({"broken": broken}, env_steps=10 * ROUND, log=log), tmp_path)
    assert result.metrics["faults"]["callbacks_failed"] == MOST_FAILURES_IN_A_ROW
    assert broken.calls == ["reported"] * MOST_FAILURES_IN_A_ROW + ["ended"]


def test_one_that_cannot_begin_is_not_told_of_reports(tmp_path: Path) -> None:
    broken = Broken("began", "reported", times=1)
    mf.train(run({"broken": broken}), tmp_path)
    assert broken.calls == ["began"]


def test_a_budget_for_failures_ends_the_run_if_it_is_set(tmp_path: Path) -> None:
    with pytest.raises(mf.BudgetExceeded, match=r"callbacks.broken: reported\(\) raised RuntimeError"):
        mf.train(run({"broken": Broken("reported")}, faults=mf.Faults(callbacks_failed=0)), tmp_path)
    assert newest(tmp_path).env_steps < 6 * ROUND


class Wrong(mf.Callback):
    def reported(self, record: mf.Report) -> mf.StopRun | None:
        record["policies"].clear()  # type: ignore[attr-defined]
        return False  # type: ignore[return-value]


def test_an_answer_of_another_kind_is_a_fault_and_changes_of_a_report_reach_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = Listener()
    result = mf.train(run({"wrong": Wrong(), "listener": listener}), tmp_path)
    assert result.metrics["faults"]["callbacks_failed"] > 0
    assert "it returned False; return None, or marlflow.StopRun(reason)" in capsys.readouterr().out
    assert all(record["policies"] for record in [*listener.of("reported"), *reports(tmp_path)])


def test_a_resumed_run_has_the_same_id_and_the_states_of_its_callbacks(tmp_path: Path) -> None:
    first, second = Listener(), Listener()
    mf.train(run({"listener": first}, env_steps=3 * ROUND), tmp_path)
    mf.resume(run({"listener": second, "new": Listener()}), tmp_path)
    (began,), (again,) = first.of("began"), second.of("began")
    assert began.id == again.id
    assert again.resumed.env_steps == 3 * ROUND
    assert 0 < again.resumed.reports <= len(first.of("reported"))
    # A checkpoint has the state before callbacks are told of it.
    names = [name for name, _ in first.heard]
    assert second.told == {"heard": len(names) - 1 - names[::-1].index("saved")}


def test_early_stopping_counts_on_after_a_resume(tmp_path: Path) -> None:
    def early() -> dict[str, mf.Callback | None]:
        return {"early": mf.EarlyStop("env_steps", reports=3, lower_is_better=True)}

    whole = mf.train(run(early(), env_steps=100 * ROUND), tmp_path / "whole")
    assert whole.stopped_by == "callbacks.early: env_steps has not improved in 3 reports, the best is 160"
    mf.train(run(early(), env_steps=5 * ROUND, evaluation=mf.Evaluation(episodes=0)), tmp_path / "parts")
    parts = mf.resume(run(early(), env_steps=100 * ROUND, evaluation=mf.Evaluation(episodes=0)), tmp_path / "parts")
    assert (parts.stopped_by, parts.metrics["env_steps"]) == (whole.stopped_by, whole.metrics["env_steps"])


@dataclass
class Fields(mf.Callback):
    values: list[float] = field(default_factory=list)


def test_the_end_is_told_with_the_error_of_the_run(tmp_path: Path) -> None:
    listener = Listener()
    with pytest.raises(mf.EnvironmentFailed):
        mf.train(run({"listener": listener, "fields": Fields([1.0])}, env=mf.Env(Raises, num_envs=4)), tmp_path)
    (end,) = listener.of("ended")
    assert end.error.startswith("EnvironmentFailed: ")
    assert listener.of("fault")[0].kind == "env_errors"
