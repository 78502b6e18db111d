"""Callbacks and sinks in whole runs: their calls, how they stop a run, and the cost of their failures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.ranges import Share
from marlflow.base.schedules import OrSchedule
from marlflow.config.settings import setting_problems
from marlflow.driver.callbacks import MOST_FAILURES_IN_A_ROW
from marlflow.runs.run_state import run_state
from marlflow.runs.saved_runs import newest
from tests.driver.breaking_environments import Raises
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL_PPO, policies, small_run

ROUND = 80


class Listener(mf.Callback):
    """Remembers all of its calls."""

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


class Placed(mf.Callback):
    """Its method has the name of that of schedules."""

    def at(self, where: str) -> str:
        raise AssertionError(f"nobody asked for {where}")

    def saved(self, path: Path) -> None: ...


@dataclass
class Decays(mf.Callback):
    """Has a setting that may be a schedule."""

    rate: OrSchedule[Share] = 0.5

    def saved(self, path: Path) -> None: ...


def test_a_callback_with_a_method_at_is_no_schedule(tmp_path: Path) -> None:
    assert mf.train(run({"placed": Placed()}), tmp_path).metrics["faults"]["callbacks_failed"] == 0
    assert not list(setting_problems(mf.Log(sinks={"placed": Placed()}), "log"))
    # A schedule among its own settings is one.
    decays = run({"decays": Decays(mf.Linear(1.0, -1.0, 100))})
    assert ["callbacks.decays.rate.end" in str(problem) for problem in setting_problems(decays)] == [True]


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


class Counts(mf.Callback):
    """Has a state that JSON would change."""

    def state(self) -> Mapping[str, Any]:
        return {"by_round": [{1: 2.0}]}


def test_a_state_whose_keys_would_come_back_as_others_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = mf.train(run({"counts": Counts()}), tmp_path)
    assert result.metrics["faults"]["callbacks_failed"] > 0
    assert "state() has the key 1, which would come back as a text; make it a text" in capsys.readouterr().out


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
    # A checkpoint has the state from before callbacks are called for it.
    names = [name for name, _ in first.heard]
    assert second.told == {"heard": len(names) - 1 - names[::-1].index("saved")}


def test_early_stopping_takes_nan_for_no_improvement() -> None:
    early = mf.EarlyStop("env_steps", reports=2)
    asked = [early.reported({"env_steps": value}) for value in (math.nan, 1.0, math.nan, 2.0, math.nan, math.nan)]  # type: ignore[typeddict-item]
    assert asked[:-1] == [None] * 5
    assert asked[-1] == mf.StopRun("env_steps has not improved in 2 reports, the best is 2")
    early.began(None)  # type: ignore[arg-type]
    never = [early.reported({"env_steps": math.nan}) for _ in range(2)]  # type: ignore[typeddict-item]
    assert never == [None, mf.StopRun("env_steps has not improved in 2 reports, it is not a number")]


def test_early_stopping_counts_a_second_report_after_the_same_env_steps_only_if_of_an_evaluation() -> None:
    def report(env_steps: int, value: float) -> Any:
        return {"env_steps": env_steps, "policies": {"a": {"return_mean": value, "eval_return_mean": value}}}

    reports = [report(100, 1.0), report(100, 1.0), report(200, 0.5), report(200, 0.5), report(300, 0.5)]
    early = mf.EarlyStop("policies.a.return_mean", reports=2)
    assert [early.reported(one) is None for one in reports] == [True, True, True, True, False]
    again = mf.EarlyStop("policies.a.return_mean", reports=2)
    for one in reports[:3]:
        again.reported(one)
    resumed = mf.EarlyStop("policies.a.return_mean", reports=2)
    resumed.load_state(again.state())
    assert [resumed.reported(one) is None for one in reports[3:]] == [True, False]
    evaluated = mf.EarlyStop("policies.a.eval_return_mean", reports=2)
    assert [evaluated.reported(one) is None for one in reports[:3]] == [True, True, False]


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

    def saved(self, path: Path) -> None: ...


def test_the_end_is_told_with_the_error_of_the_run(tmp_path: Path) -> None:
    listener = Listener()
    with pytest.raises(mf.EnvironmentFailed):
        mf.train(run({"listener": listener, "fields": Fields([1.0])}, env=mf.Env(Raises, num_envs=4)), tmp_path)
    (end,) = listener.of("ended")
    assert end.error.startswith("EnvironmentFailed: ")
    assert listener.of("fault")[0].kind == "env_errors"


class Counter(mf.Callback):
    """Counts reports, and says how many there were before; asks for an evaluation at one of them."""

    def __init__(self, asks_at: int | None = None) -> None:
        self.seen, self.asks_at = 0, asks_at

    def reported(self, record: mf.Report) -> mf.EvaluateNow | None:
        self.seen += 1
        return mf.EvaluateNow() if record["env_steps"] == self.asks_at else None

    def metrics(self) -> Mapping[str, float | None]:
        return {"seen": self.seen, "half": np.float32(self.seen / 2), "later": None if self.seen < 2 else 1.0}

    def state(self) -> Mapping[str, Any]:
        return {"seen": self.seen}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]


def test_reports_have_the_metrics_of_callbacks_also_after_a_resume(tmp_path: Path) -> None:
    def counted(**changes: Any) -> mf.Experiment:
        # The checkpoint comes after the report of the same env steps, which it counts.
        return run({"counter": Counter(), "other": Listener()}, evaluation=mf.Evaluation(episodes=0), **changes)

    mf.train(counted(), tmp_path / "whole")
    mf.train(counted(env_steps=3 * ROUND), tmp_path / "parts")
    mf.resume(counted(), tmp_path / "parts")
    whole, parts = ([one["callbacks"] for one in reports(tmp_path / where)] for where in ("whole", "parts"))
    assert whole == [
        {"counter": {"seen": seen, "half": seen / 2, "later": None if seen < 2 else 1.0}} for seen in range(1, 5)
    ]
    # The first part also ends with a report.
    assert [one["counter"]["seen"] for one in parts] == [1, 2, 3, 4]
    assert list(reports(tmp_path / "whole")[0])[-1] == "callbacks"


def test_metrics_of_a_callback_can_stop_a_run_choose_its_best_checkpoint_and_be_its_objective(tmp_path: Path) -> None:
    early = mf.EarlyStop("callbacks.counter.later", reports=2, min_change=1e-9)
    best = mf.CheckpointConfig(every_env_steps=2 * ROUND, best="callbacks.counter.seen")
    experiment = run({"counter": Counter(), "early": early}, env_steps=40 * ROUND, checkpoint=best)
    result = mf.train(replace(experiment, objective="callbacks.counter.seen"), tmp_path)
    assert result.stopped_by.startswith("callbacks.early: callbacks.counter.later has not improved in 2 reports")
    assert result.objective == result.metrics["callbacks"]["counter"]["seen"] > 2
    assert "callbacks.counter.seen" in result.frame().columns


@pytest.mark.parametrize(
    ("goal", "problem"),
    [
        ("callbacks.cuonter.seen", "there is no callback 'cuonter'; did you mean 'counter'?"),
        ("callbacks.counter.seem", "callback 'counter' has no figure 'seem'; did you mean 'seen'?"),
        ("callbacks.counter", "a figure of a callback is callbacks.<name>.<figure>"),
        ("callbacks.listener.seen", r"callback 'listener' has no figures; its class gives some with metrics\(\)"),
    ],
)
def test_a_goal_of_a_callback_that_has_none_is_refused(goal: str, problem: str, tmp_path: Path) -> None:
    callbacks = {"counter": Counter(), "listener": Listener()}
    with pytest.raises(mf.ConfigInvalid, match=f"objective {goal}: {problem}"):
        mf.train(replace(run(callbacks), objective=goal), tmp_path)
    with pytest.raises(mf.ConfigInvalid, match=f"callbacks.early.metric {goal}: {problem}"):
        mf.train(run({**callbacks, "early": mf.EarlyStop(goal)}), tmp_path)


class Late(mf.Callback):
    """Knows its figures when the run begins."""

    figures: Mapping[str, float | None] = {"copies": 0.0}

    def began(self, info: mf.RunInfo) -> None:
        self.figures = {"copies": 0.0, "score/hunters": 7.0}

    def metrics(self) -> Mapping[str, float | None]:
        return self.figures


def test_a_goal_may_be_a_figure_that_a_callback_has_only_after_its_beginning(tmp_path: Path) -> None:
    result = mf.train(replace(run({"late": Late()}), objective="callbacks.late.score/hunters"), tmp_path)
    assert result.objective == 7.0


class Once(mf.Callback):
    """Has a figure until the second report, and fails after the third."""

    seen = 0

    def reported(self, record: mf.Report) -> None:
        self.seen += 1

    def metrics(self) -> Mapping[str, float | None]:
        if self.seen >= 3:
            raise ValueError("no more")
        return {"a": 1.0} if self.seen < 2 else {}


def test_figures_that_are_gone_after_a_report_are_not_in_it_and_a_failure_is_counted_once(tmp_path: Path) -> None:
    mf.train(run({"once": Once()}, env_steps=10 * ROUND, faults=mf.Faults(callbacks_failed=9)), tmp_path)
    first, *others = [one.get("callbacks") for one in reports(tmp_path)]
    assert first == {"once": {"a": 1.0}}
    assert not any(others)
    # It fails after the third report, and then once while each is made.
    assert [one["faults"]["callbacks_failed"] for one in reports(tmp_path)][:5] == [0, 0, 0, 2, 3]


class BestEvaluation(mf.Callback):
    """Gives the highest evaluation in the reports."""

    best: float | None = None

    def reported(self, record: mf.Report) -> None:
        found = [self.best, record["policies"]["hunters"]["eval_return_mean"]]
        self.best = max((value for value in found if value is not None), default=None)

    def metrics(self) -> Mapping[str, float | None]:
        return {"best": self.best}


def test_the_objective_of_a_callback_has_seen_the_last_report(tmp_path: Path) -> None:
    wanted = replace(run({"evaluations": BestEvaluation()}), objective="callbacks.evaluations.best")
    result = mf.train(wanted, tmp_path)
    evaluated = [one["policies"]["hunters"]["eval_return_mean"] for one in reports(tmp_path)]
    highest = [max((v for v in evaluated[: n + 1] if v is not None), default=None) for n in range(len(evaluated))]
    assert evaluated[-1] is not None
    assert result.objective == highest[-1]
    assert [one["callbacks"]["evaluations"]["best"] for one in reports(tmp_path)] == highest


def test_a_goal_may_be_of_a_policy_with_dots_in_its_name(tmp_path: Path) -> None:
    of = {"policies": policies(**{"red": SMALL_PPO, "red.2": mf.Random()})}
    mapping = [mf.Rule("cart_0", "red"), mf.Rule("*", "red.2")]
    early = mf.EarlyStop("policies.red.2.return_mean", reports=1, min_change=1e9)
    wanted = replace(run({"early": early}, **of, mapping=mapping), objective="policies.red.2.eval_return_mean")
    result = mf.train(wanted, tmp_path)
    assert "callbacks.early" in result.stopped_by
    assert result.objective == result.metrics["policies"]["red.2"]["eval_return_mean"]
    with pytest.raises(mf.ConfigInvalid, match=r"policies.red.3.return_mean: .*red.*2"):
        mf.train(replace(wanted, objective="policies.red.3.return_mean"), tmp_path)


def test_a_damaged_report_costs_a_resumed_run_its_picture_and_nothing_else(tmp_path: Path) -> None:
    mf.train(run({}), tmp_path)
    path = tmp_path / "metrics.jsonl"
    _, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join(['{"env_steps": 5, "po\n', *others]))
    result = mf.resume(run({}, env_steps=8 * ROUND, faults=mf.Faults(reports_failed=1)), tmp_path)
    assert result.metrics["env_steps"] == 8 * ROUND
    assert run_state(tmp_path).name == "finished"
    assert path.read_text().startswith('{"env_steps": 5, "po\n')


class Gives(mf.Callback):
    def __init__(self, metrics: Any) -> None:
        self._metrics = metrics

    def metrics(self) -> Mapping[str, float | None]:
        return self._metrics  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ([1.0], "metrics() raised TypeError: it returned [1.0], not numbers by name"),
        ({"a": 1.0, "b": "high"}, "metrics() raised TypeError: its b is 'high', a str; expected a number, or None"),
        ({"a": np.zeros(2)}, "metrics() raised TypeError: its a is array([0., 0.]), a ndarray; expected a number"),
        (
            {"a.b": 1.0},
            "metrics() raised TypeError: it named a metric 'a.b'; a name is a text in one line, without dots",
        ),
        ({3: 1.0}, "metrics() raised TypeError: it named a metric 3; a name is a text in one line, without dots"),
    ],
)
def test_metrics_that_are_no_numbers_by_name_are_a_fault_and_in_no_report(
    metrics: Any, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = mf.CheckpointConfig(every_env_steps=ROUND, best="callbacks.gives.a")
    result = mf.train(run({"gives": Gives(metrics), "counter": Counter()}, checkpoint=best), tmp_path)
    assert result.stopped_by == f"stop.env_steps={6 * ROUND}"
    assert problem in capsys.readouterr().out
    assert 0 < result.metrics["faults"]["callbacks_failed"] <= MOST_FAILURES_IN_A_ROW
    assert all(set(one["callbacks"]) == {"counter"} for one in reports(tmp_path))


class FailingMetrics(mf.Callback):
    """Raises in metrics(), and remembers how many of these failures each report has."""

    def __init__(self) -> None:
        self.failures, self.reported_failures = 0, list[tuple[int, int]]()

    def metrics(self) -> Mapping[str, float | None]:
        self.failures += 1
        raise RuntimeError("its server is away")

    def reported(self, record: mf.Report) -> None:
        self.reported_failures.append((record["faults"]["callbacks_failed"], self.failures))


def test_a_report_counts_the_callback_that_fails_as_it_is_made(tmp_path: Path) -> None:
    failing = FailingMetrics()
    mf.train(run({"failing": failing}), tmp_path)
    assert failing.reported_failures
    assert all(in_report == so_far for in_report, so_far in failing.reported_failures)


def test_an_evaluation_that_a_callback_asks_for_comes_after_the_next_round_also_after_a_resume(tmp_path: Path) -> None:
    def asking(listener: Listener, **changes: Any) -> mf.Experiment:
        callbacks = {"asking": Counter(asks_at=2 * ROUND), "listener": listener}
        return run(callbacks, evaluation=mf.Evaluation(1_000 * ROUND, 2), **changes)

    def at(listener: Listener) -> list[int]:
        return [one.env_steps for one in listener.of("evaluated")]

    whole, first, second = Listener(), Listener(), Listener()
    mf.train(asking(whole), tmp_path / "whole")
    assert at(whole) == [ROUND, 3 * ROUND, 6 * ROUND]
    # Its checkpoint is that after the report in which the evaluation was asked for.
    mf.train(asking(first, env_steps=2 * ROUND), tmp_path / "parts")
    mf.resume(asking(second), tmp_path / "parts")
    assert (at(first), at(second)) == ([ROUND, 2 * ROUND], [3 * ROUND, 6 * ROUND])
    # A resume without evaluations makes none.
    mf.train(asking(Listener(), env_steps=2 * ROUND), tmp_path / "none")
    silent = Listener()
    without = run({"asking": Counter(), "listener": silent}, evaluation=mf.Evaluation(episodes=0))
    mf.resume(without, tmp_path / "none")
    assert at(silent) == []
    played = [[one.policies for one in listener.of("evaluated")] for listener in (whole, second)]
    assert played[0][1:] == played[1]


def test_without_evaluations_during_the_run_one_that_is_asked_for_has_the_episodes_of_the_last(tmp_path: Path) -> None:
    listener = Listener()
    callbacks = {"asking": Counter(asks_at=2 * ROUND), "listener": listener}
    mf.train(run(callbacks, evaluation=mf.Evaluation(episodes=0, final_episodes=3)), tmp_path)
    evaluations = listener.of("evaluated")
    assert [one.env_steps for one in evaluations] == [3 * ROUND, 6 * ROUND]
    assert [one.policies["prey"]["eval_episodes"] for one in evaluations] == [3, 3]


def test_an_evaluation_that_would_have_no_episodes_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = Listener()
    callbacks = {"asking": Counter(asks_at=2 * ROUND), "listener": listener}
    result = mf.train(run(callbacks, evaluation=mf.Evaluation(episodes=0)), tmp_path)
    assert (result.metrics["faults"]["callbacks_failed"], listener.of("evaluated")) == (1, [])
    assert "it asked for an evaluation, and evaluation.episodes is 0" in capsys.readouterr().out
