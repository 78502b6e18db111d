"""Callbacks and sinks of a configuration: what is built, and each bad input in one sentence that names its key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.callbacks import callback_problems
from marlflow.config.compose import composing
from marlflow.config.overrides import prepare
from marlflow.config.schema import read
from tests.runtime.small_runs import small_run
from tests.sentences import refusals

HERE = __name__


@dataclass
class Alarm(mf.Callback):
    address: str = "nobody"
    headers: Mapping[str, str] | None = None

    def ended(self, result: object) -> None: ...


class NoCallback:
    def reported(self, record: object) -> None: ...


def function(limit: int = 3) -> object:
    return object()


class Crooked(mf.Callback):
    def problems(self) -> Iterable[str]:
        raise OSError("no such file")


AT = Crooked.problems.__code__.co_firstlineno + 1


def composed(*overrides: str) -> tuple[Any, list[str]]:
    with composing():
        prepared = prepare(["env=simple_tag", "runtime=inline", *overrides])
    problems = [*prepared.problems]
    return read(prepared.config, problems), problems


def test_choices_and_values_on_the_command_line_build_callbacks() -> None:
    experiment, problems = composed(
        "sinks=[wandb,mlflow]",
        "log.sinks.wandb.mode=offline",
        "callback=early_stop",
        "callbacks.early_stop.metric=policies.agent.return_mean",
        f"callbacks.alarm={{_target_: {HERE}.Alarm, address: me}}",
        "callbacks.none=null",
    )
    assert problems == []
    assert experiment.log.sinks == {"wandb": mf.WandbSink(mode="offline"), "mlflow": mf.MlflowSink()}
    assert experiment.callbacks == {"early_stop": mf.EarlyStop("policies.agent.return_mean"), "alarm": Alarm("me")}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("callbacks.a={_target_: no.such.Thing}", "callbacks.a._target_: no.such.Thing cannot be imported: "),
        (f"callbacks.a={{_target_: {HERE}.NoCallback}}", "callbacks.a: NoCallback is no callback; derive it from "),
        (f"callbacks.a={{_target_: {HERE}.function}}", f"callbacks.a: {HERE}.function returned <object object"),
        (f"callbacks.a={{_target_: {HERE}.Alarm, adress: me}}", "there is no callbacks.a.adress; did you mean "),
        ("callbacks.a=3", "callbacks.a must be {_target_: package.module.Class, ...} or null, not 3"),
        ("log.sinks.a={mode: offline}", "log.sinks.a must be {_target_: package.module.Class, ...} or null, not {"),
        ("callback=early_stop", "callbacks.early_stop.metric is not set; give it a value"),
        ("log.sinks.wandb={_target_: marlflow.WandbSink, mode: sometimes}", "log.sinks.wandb.mode must be one of "),
        (
            "log.sinks.wandb={_target_: marlflow.WandbSink, api_key: abc}",
            "log.sinks.wandb.api_key is a secret, and the run's folder would have it as plain text; leave it out, and "
            "set WANDB_API_KEY in the environment instead",
        ),
        (
            "log.sinks.mlflow={_target_: marlflow.MlflowSink, tracking_uri: 'https://me:pass@host'}",
            "log.sinks.mlflow.tracking_uri is a secret, and the run's folder would have it as plain text; leave it "
            "out, and set MLFLOW_TRACKING_PASSWORD in the environment instead",
        ),
        (f"callbacks.a={{_target_: {HERE}.Alarm, headers: {{X-Token: a}}}}", "callbacks.a.headers.X-Token is a "),
        (f"callbacks.a={{_target_: {HERE}.Alarm, headers: {{auth_token: a}}}}", "callbacks.a.headers.auth_token is a "),
        (f"callbacks.a={{_target_: {HERE}.Alarm, headers: {{num_tokens: a}}}}", None),
    ],
)
def test_bad_input_is_one_problem_that_names_its_key(override: str, said: str | None) -> None:
    _, problems = composed(override)
    if said is None:
        assert problems == []
    else:
        (problem,) = problems
        assert problem.startswith(said)


class Misspelled(mf.Callback):
    """Its method would never be called."""

    def on_report(self, record: object) -> None: ...


class Idle(mf.Callback):
    """It has no method."""


def test_a_callback_that_nothing_would_call_is_refused() -> None:
    made = replace(small_run(), callbacks={"a": Misspelled(), "b": Idle(), "c": Alarm("me")})
    misspelled, idle = callback_problems(made)
    said = "overrides no method of marlflow.Callback, so nothing would call it"
    assert misspelled == f"callbacks.a: Misspelled {said}; did you mean 'reported'?"
    assert idle.startswith(f"callbacks.b: Idle {said}; its methods are problems, began, ")


class OfOtherArguments(mf.Callback):
    """Methods as a run cannot call them, beside some that it can."""

    def reported(self) -> None: ...  # type: ignore[override]

    def played(self, round: object, more: object) -> None: ...  # type: ignore[override]

    def evaluated(self, *given: object, often: bool = True) -> None: ...

    @staticmethod
    def saved(path: object) -> None: ...  # type: ignore[override]


def test_methods_that_a_run_could_not_call_are_refused() -> None:
    made = replace(small_run(), callbacks={"a": OfOtherArguments()})
    assert sorted(callback_problems(made)) == [
        "callbacks.a: OfOtherArguments.played(round: 'object', more: 'object') -> 'None' cannot be called as "
        "played(round), as it will be",
        "callbacks.a: OfOtherArguments.reported() -> 'None' cannot be called as reported(record), as it will be",
    ]


def test_callbacks_from_python_are_checked_too() -> None:
    made = replace(
        small_run(),
        log=mf.Log(sinks={"a": Alarm("http://me:secret@host"), "b": Alarm(headers={"password": "x"})}),
        callbacks={"c": Crooked(), "d": None},
    )
    assert [problem.partition(";")[0] for problem in callback_problems(made)] == [
        "log.sinks.a.address is a secret, and the run's folder would have it as plain text",
        "log.sinks.b.headers.password is a secret, and the run's folder would have it as plain text",
        f'callbacks.c: Crooked.problems() raised OSError: no such file\n  File "{__file__}", line {AT}, in problems\n'
        '    raise OSError("no such file")',
    ]


@pytest.mark.parametrize("value", [NoCallback(), "early", 3, Alarm])
def test_what_is_no_callback_is_refused_before_the_run_starts(value: Any) -> None:
    (problem,) = refusals(mf.ConfigInvalid, mf.train, replace(small_run(), callbacks={"a": value}))
    assert problem.startswith("callbacks.a must be Callback or null, not ")


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("policies.prey.eval_return_mean", None),
        ("learners.prey.loss.policy", None),
        ("policies.prey.eval_against.random", None),
        ("env_steps", None),
        ("faults.env_errors", None),
        ("polices.prey.return_mean", "a report has no 'polices'; did you mean 'policies'?"),
        ("policies.pray.return_mean", "there is no policy 'pray'; did you mean 'prey'?"),
        (
            "policies.prey.eval_retrun_mean",
            "a policy has no figure 'eval_retrun_mean'; did you mean 'eval_return_mean'?",
        ),
        ("policies.prey.updates", "updates is a figure of a learner; write learners.prey.updates"),
        ("learners.prey.loss", "a learner has no figure 'loss'"),
    ],
)
def test_the_metric_of_an_early_stop_is_checked_before_the_run(metric: str, said: str | None) -> None:
    made = small_run(callbacks={"early": mf.EarlyStop(metric)})
    if said is None:
        ready(made)
        return
    (problem,) = refusals(mf.ConfigInvalid, ready, made)
    assert problem.startswith(f"callbacks.early.metric {metric}: {said}")


def test_an_early_stop_needs_a_figure_of_its_policy() -> None:
    with pytest.raises(
        mf.ConfigInvalid, match=r"early.metric policies.prey names no figure; write policies.prey.return_m"
    ):
        ready(small_run(callbacks={"early": mf.EarlyStop("policies.prey")}))
