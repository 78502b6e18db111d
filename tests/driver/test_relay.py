from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from marlflow.config.environment import environment_maker, opened
from marlflow.config.experiment import Env, Rollouts, Stop
from marlflow.driver.relay import Relay
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.sampling.messages import LeftOut, Logged, Printed, Silent, StepRunning
from tests.runtime.small_runs import small_run

WHERE = "environment taxi_v3, env 4, episode seed 5, env step 6: step()"


class Shown:
    def __init__(self, **changes: object) -> None:
        self.told: list[str] = []
        self.relay = Relay(small_run(**changes), self.told.append)


def test_a_printed_line_is_shown_and_logged_with_its_worker_and_environment(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shown = Shown()
    shown.relay(Printed(2, "taxi_v3, env 4", "no fuel"))
    shown.relay(Printed(3, "", "loading"))
    assert shown.told == ["[worker 2, taxi_v3, env 4] no fuel", "[worker 3] loading"]
    assert [record.getMessage() for record in caplog.records] == shown.told


def test_a_log_record_goes_where_it_would_have_gone_here(caplog: pytest.LogCaptureFixture) -> None:
    shown = Shown()
    shown.relay(Logged(2, "taxi_v3, env 4", "taxi.engine", logging.ERROR, "no fuel"))
    assert caplog.record_tuples == [("taxi.engine", logging.ERROR, "[worker 2, taxi_v3, env 4] no fuel")]
    assert shown.told == []


def test_of_many_workers_no_more_lines_are_shown_than_can_be_read() -> None:
    shown = Shown()
    for worker in range(1_000):
        shown.relay(Printed(worker, "", "hello"))
    shown.relay.close()
    hellos = [text for text in shown.told if text.endswith("hello")]
    first, last = (text for text in shown.told if text not in hellos)
    assert len(hellos) <= 200
    assert first.endswith("] 1 line left out")
    assert last.endswith(f"] {999 - len(hellos)} lines left out")
    assert last.startswith("[workers ")
    assert " more] " in last


def test_what_is_left_out_is_said_at_once_and_then_rarely(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shown = Shown()
    for line in range(50):
        for worker in (0, 1):
            shown.relay(LeftOut(worker, 40, f"/logs/worker_{worker}.out"))
            shown.relay(Printed(worker, "env 4", f"turn {line}"))
    shown.relay.close()
    notices = [text for text in shown.told if "left out" in text]
    assert notices == [
        "[worker 0] 40 lines left out; all that it printed is in /logs/worker_0.out, and in the .err file next to it",
        "[workers 0, 1] 3,960 lines left out; all that they printed is in /logs, and run.log names the file of each",
    ]
    assert (
        "all that rollout worker 1 prints is in /logs/worker_1.out, and in the .err file next to it" in caplog.messages
    )


@pytest.mark.parametrize(
    ("timeout_s", "ends"),
    [
        (None, "nothing ends that; env.step_timeout_s=<seconds> would"),
        (60.0, "env.step_timeout_s=60 ends it, with its process"),
    ],
)
def test_a_worker_that_is_silent_is_named(timeout_s: float | None, ends: str, caplog: pytest.LogCaptureFixture) -> None:
    env = Env(CartPoleTeam, step_timeout_s=timeout_s, num_envs=4)
    shown = Shown(env=env, rollouts=Rollouts(num_workers=4))
    shown.relay(Silent(3, 30.0))
    shown.relay(Silent(5, 30.0))
    first, second = caplog.messages
    assert second == first.replace("rollout worker 3", "referee 1")
    assert [first] == [
        "rollout worker 3 has not been heard from for 30 s: its process is stopped, or code in C, of an environment "
        f"for example, keeps Python's lock there; {ends}"
    ]


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, "nothing ends it; env.step_timeout_s=<seconds> would, and faults.env_hangs says how often"),
        (
            {"stop": Stop(time_s=60.0, grace_period_s=10.0)},
            "stop.time_s=60 and stop.grace_period_s=10 end it after 70 s at the latest; "
            "env.step_timeout_s=<seconds> would",
        ),
        ({"env": Env(CartPoleTeam, step_timeout_s=300.0, num_envs=4)}, "env.step_timeout_s=300 ends it"),
    ],
    ids=["no bound", "time_s", "step_timeout_s"],
)
def test_where_an_environment_hangs_is_said_with_what_bounds_it(
    changes: dict[str, object], ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown = Shown(**changes)
    shown.relay(StepRunning(1, WHERE, 16.0))
    assert caplog.messages == []
    shown.relay(StepRunning(1, WHERE, 32.0))
    (said,) = caplog.messages
    assert said.startswith(f"rollout worker 1: {WHERE} has been running for 32 s; {ends}")
    assert [text.partition(" has been running")[0] for text in shown.relay.running()] == [f"rollout worker 1: {WHERE}"]
    shown.relay(StepRunning(1, WHERE, 45.0, is_over=True))
    assert caplog.messages[-1] == f"rollout worker 1: {WHERE} is over after 45 s"
    assert shown.relay.running() == []


def test_a_call_that_soon_returned_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    shown = Shown()
    shown.relay(StepRunning(1, WHERE, 2.0))
    shown.relay(StepRunning(1, WHERE, 3.0, is_over=True))
    assert (caplog.messages, shown.told) == ([], [])


def test_an_environment_that_hangs_when_it_is_first_opened_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    said = threading.Event()
    monkeypatch.setattr("marlflow.config.environment._OPENS_FOR_S", 0.01)
    caplog.handler.addFilter(lambda record: said.set() or True)

    class Loads(CartPoleTeam):
        def reset(self, seed=None, options=None):
            assert said.wait(60)
            return super().reset(seed, options)

    env = Env(Loads)
    with opened(environment_maker(env), env):
        pass
    assert caplog.messages[0].startswith("environment ")
    assert "Loads has been opening for 0 s: it is being made, or reset for the first time" in caplog.messages[0]
