"""A signal within a run, wherever it comes: what is under way is finished, unless there is nothing, or no time left."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray._private import utils

import marlflow as mf
from marlflow.driver import graceful_shutdown as interrupt_module
from marlflow.driver.graceful_shutdown import GracefulShutdown, Terminated
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.observe.sinks import JsonlSink
from marlflow.runs.saved_runs import newest
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.ray.private_api import without_signal_handlers
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.watching import reports
from tests.runtime.small_runs import small_run


class Signals(CartPoleTeam):
    """Sends its own process the given signals, one in each env step from the 500th of this process on."""

    to_send: tuple[signal.Signals, ...] = ()
    made = 0

    def step(self, actions: dict[str, int]) -> Any:
        Signals.made += 1
        if 0 <= (index := Signals.made - 500) < len(self.to_send):
            signal.raise_signal(self.to_send[index])
        return super().step(actions)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`signals(SIGINT, ...)`: sends these, and restores the earlier handlers afterwards."""

    def choose(*numbers: signal.Signals) -> None:
        monkeypatch.setattr(Signals, "made", 0)
        monkeypatch.setattr(Signals, "to_send", numbers)

    return choose


def run_of(env_steps: int = 10_000, **changes: Any) -> mf.Experiment:
    changes.setdefault("checkpoint", mf.CheckpointConfig(every_env_steps=None))
    return small_run(env=mf.Env(Signals, {"max_cycles": 50}, num_envs=4), env_steps=env_steps, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a request to end."""
    mf.train(run_of(1_040), run_dir := tmp_path_factory.mktemp("whole"))
    return run_dir


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([signal.SIGINT], "interrupted"),
        ([signal.SIGTERM], "terminated"),
        ([signal.SIGTERM, signal.SIGTERM], "terminated"),
    ],
)
def test_a_run_that_was_asked_to_end_goes_on_as_if_it_never_had(
    numbers: list[signal.Signals], reason: str, signals: Callable[..., None], whole: Path, tmp_path: Path
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    parts = tmp_path
    signals(*numbers)
    assert mf.train(run_of(), parts).stopped_by == reason
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert newest(parts).env_steps == reports(parts)[-1]["env_steps"] == 560, "the round of the 500th, and no other"
    signals()
    mf.resume(run_of(1_040), parts)
    assert_equal(kept(whole), kept(parts))
    assert_equal(without_times(reports(whole)), without_times(reports(parts)))


def test_a_second_ctrl_c_ends_it_at_once(signals: Callable[..., None], tmp_path: Path) -> None:
    signals(signal.SIGTERM, signal.SIGINT)
    with pytest.raises(Terminated):
        mf.train(run_of(checkpoint=mf.CheckpointConfig(every_env_steps=160)), tmp_path)
    assert newest(tmp_path).env_steps == 480


def test_it_may_come_while_a_report_is_written(
    signals: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, reported = JsonlSink.reported, []

    def interrupted(sink: JsonlSink, record: Any) -> None:
        reported.append(record)
        if len(reported) == 1:
            signal.raise_signal(signal.SIGINT)
        report(sink, record)

    monkeypatch.setattr(JsonlSink, "reported", interrupted)
    assert mf.train(run_of(), tmp_path).stopped_by == "interrupted"
    assert [record["env_steps"] for record in reports(tmp_path)] == [400, 400]


def test_it_may_come_while_the_run_is_ending_by_itself(
    signals: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = run_of(480, evaluation=mf.Evaluation(10_000, 3))
    signals(signal.SIGINT)  # the 500th is one of the evaluation's
    result = mf.train(experiment, tmp_path)
    assert result.stopped_by == "interrupted"
    assert newest(tmp_path).env_steps == 480


class SignalsAtItsEnd(mf.Callback):
    def ended(self, result: mf.RunEnd) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_it_may_come_after_the_last_report(tmp_path: Path) -> None:
    ended = mf.train(small_run(env_steps=80, callbacks={"ends": SignalsAtItsEnd()}), tmp_path)
    assert ended.stopped_by == "terminated"
    assert json.loads((tmp_path / "state.json").read_text())["state"] == "interrupted"


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["INT", "TERM"]
)
def test_while_it_starts_there_is_nothing_to_finish(
    number: signal.Signals, raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    close = InlineRuntime.close

    def start(runtime: InlineRuntime, *given: Any) -> Any:
        signal.raise_signal(number)

    def see_close(runtime: InlineRuntime) -> None:
        closed.append(runtime)
        close(runtime)

    monkeypatch.setattr(InlineRuntime, "start", start)
    monkeypatch.setattr(InlineRuntime, "close", see_close)
    with pytest.raises(raised) as caught:
        mf.train(run_of(), tmp_path)
    assert type(caught.value) is raised
    assert len(closed) == 1


class Ending:
    """Python drops exceptions that are raised while an object goes."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_whose_exception_was_dropped_while_the_run_started_ends_it_when_it_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    interrupt = GracefulShutdown(1.0, print)
    with interrupt.listening():
        Ending()
        with pytest.raises(Terminated):
            interrupt.begin()
    assert capsys.readouterr().err == ""


def test_ray_sets_no_handler_of_its_own() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with without_signal_handlers():
        utils.set_sigterm_handler(print)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_after_its_time_is_nobodys() -> None:
    interrupt = GracefulShutdown(0.0, print)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for jobs in the background
    try:
        with interrupt.listening():
            interrupt.begin()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupt.requested is None


def test_it_says_which_environment_keeps_the_run_from_finishing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hanging call is not known at once, so `explain` is called again."""
    monkeypatch.setattr(interrupt_module, "_EXPLAINED_AFTER_S", 0.01)
    found: list[list[str]] = [[], ["rollout worker 1: step() has been running for 6 s"]]
    told: list[str] = []
    said = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        if not found:
            said.set()

    interrupt = GracefulShutdown(60.0, tell, lambda: found.pop(0))
    with interrupt.listening():
        interrupt.begin()
        signal.raise_signal(signal.SIGINT)
        assert said.wait(60)
    assert told == [
        "finishing this round; interrupt again to stop at once",
        "rollout worker 1: step() has been running for 6 s",
    ]


def test_the_time_to_finish_ends_though_calls_could_not_be_asked_to_end_early() -> None:
    told: list[str] = []

    def fails() -> None:
        raise RuntimeError("the store is gone")

    interrupt = GracefulShutdown(0.05, told.append, on_request=fails)
    with pytest.raises(KeyboardInterrupt), interrupt.listening():  # noqa: PT012  the second signal comes by itself
        interrupt.begin()
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait(60)
    assert told[:2] == [
        "calls under way are not ended early: RuntimeError: the store is gone",
        "finishing this round; interrupt again to stop at once",
    ]
