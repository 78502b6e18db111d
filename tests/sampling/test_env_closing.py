"""An environment that cannot be closed is a fault that says why, and takes a bounded time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from marlflow.base.errors import FaultKind
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.receipts import Fault
from marlflow.sampling.watchdog import close_within
from tests.sampling.test_broken_environments import Counter, worker


def raises() -> None:
    raise OSError("the simulator is gone")


def hangs() -> None:
    threading.Event().wait()


def stubborn() -> None:
    """Holds on to its life once."""
    try:
        hangs()
    except BaseException:  # noqa: BLE001  as strange environments do
        hangs()


def in_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("called", [lambda call: call(), in_thread], ids=["main thread", "another thread"])
@pytest.mark.parametrize(
    ("close", "timeout_s", "reason"),
    [
        (lambda: None, 5.0, None),
        (raises, 5.0, "close() raised OSError: the simulator is gone"),
        (hangs, 0.05, "close() took longer than 0.05 s"),
        (stubborn, 0.05, "close() took longer than 0.05 s"),
        (raises, 0.0, "it was not closed: others took all of the time that there was"),
    ],
    ids=["closes", "raises", "hangs", "hangs when it is interrupted", "no time left"],
)
def test_whatever_close_does_it_is_a_fault_or_nothing(
    close: Callable[[], None], timeout_s: float, reason: str | None, called: Callable[[Callable[[], Any]], Any]
) -> None:
    fault = called(lambda: close_within(close, "env 3", timeout_s))
    assert fault == (None if reason is None else Fault(FaultKind.CLOSES_FAILED, "env 3", reason, "", 0))


def test_the_alarm_of_whoever_watches_goes_on_afterwards() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 500.0, 600.0)
        assert close_within(hangs, "env 0", 0.02) is not None
        left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0.0)
        assert 0 < left_s <= 500.0
        assert interval_s == 600.0
        signal.raise_signal(signal.SIGALRM)
        assert seen == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


class Sticky(Counter):
    """Raises when it is closed; breaks in its second episode."""

    resets = 0

    def reset(self, seed=None, options=None):
        self.resets += 1
        return super().reset(seed, options)

    def step(self, actions):
        if self.resets == 3:  # the first was the adapter's own
            raise RuntimeError("stuck")
        return super().step(actions)

    def close(self):
        raise RuntimeError("it sticks")


def test_one_that_broke_and_cannot_be_closed_is_two_faults():
    player = worker(Sticky, tolerated_faults=1)
    receipt, _ = player.collect(4)
    assert [(fault.kind, fault.reason) for fault in receipt.faults] == [
        ("env_errors", "step() raised RuntimeError: stuck"),
        ("closes_failed", "close() raised RuntimeError: it sticks"),
    ]
    assert "test_env_closing.py" in receipt.faults[1].user_traceback


def test_all_are_closed_whatever_the_others_do():
    player = worker(Sticky, env_indices=(0, 1, 2))
    assert not player.evaluate(EvaluationRequest([0])).faults
    # A larger evaluation needs more environments, and the present ones cannot be closed.
    assert [fault.kind for fault in player.evaluate(EvaluationRequest([1, 2])).faults] == ["closes_failed"]
    faults = player.close()
    assert [fault.where.split(", ")[1] for fault in faults] == [f"env {env_index}" for env_index in (0, 1, 2, 0, 1)]
    assert {fault.kind for fault in faults} == {"closes_failed"}


def test_closing_all_takes_no_longer_than_it_may():
    class Hanging(Counter):
        def close(self):
            hangs()

    reasons = [fault.reason for fault in worker(Hanging, env_indices=(0, 1, 2)).close(timeout_s=0.05)]
    assert reasons[0].startswith("close() took longer than 0.0")
    assert reasons[1:] == ["it was not closed: others took all of the time that there was"] * 2
