"""Handlers of the signals that ask a process to end."""

import os
import signal
from collections.abc import Iterator

import pytest

from marlflow.base.signals import ENDING, handled


@pytest.fixture(autouse=True)
def earlier_handlers() -> Iterator[None]:
    def elsewhere(number: int, _frame: object) -> None:
        raise AssertionError(f"signal {number} is handled elsewhere")

    # Tests may run under nohup, too.
    before = {number: signal.signal(number, elsewhere) for number in ENDING}
    yield
    assert {signal.signal(number, before[number]) for number in ENDING} == {elsewhere}


def test_signals_are_handled_only_inside() -> None:
    came: list[int] = []
    with handled(lambda number, _frame: came.append(number)):
        for number in ENDING:
            os.kill(os.getpid(), number)
    assert came == list(ENDING)


def test_a_handler_that_another_library_replaced_is_installed_again() -> None:
    came: list[int] = []
    with handled(lambda number, _frame: came.append(number)) as install:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        install()
        os.kill(os.getpid(), signal.SIGTERM)
    assert came == [signal.SIGTERM]


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    elsewhere = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handled(lambda number, _frame: pytest.fail(f"signal {number} is handled")) as install:
        install()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, elsewhere) == signal.SIG_IGN
