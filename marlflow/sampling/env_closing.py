"""Close environments in bounded time; report faults."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from marlflow.base.errors import EnvironmentFailed, FaultKind
from marlflow.sampling.receipts import Fault
from marlflow.sampling.watchdog import HAS_ALARM, Overdue, Watchdog

CLOSE_TIMEOUT_S = 10.0
"""Seconds for closing all environments of a process, or a broken one."""


def close_within(close: Callable[[], Any], where: str, timeout_s: float | None = None) -> Fault | None:
    """Call `close` for at most `timeout_s` seconds (None: CLOSE_TIMEOUT_S); return a fault of `where`.

    Outside of the main thread, even C code that never returns is abandoned.
    """
    timeout_s = CLOSE_TIMEOUT_S if timeout_s is None else timeout_s
    reason, user_traceback = "it was not closed: others took all of the time that there was", ""
    if timeout_s > 0:
        is_main = threading.current_thread() is threading.main_thread()
        run = _with_alarm if is_main and HAS_ALARM else _in_thread
        try:
            run(close, timeout_s)
            return None
        except Overdue:
            reason = f"close() took longer than {timeout_s:.3g} s"
        except EnvironmentFailed as failure:
            where, reason, user_traceback = failure.where, failure.reason, failure.user_traceback
        except Exception as error:  # noqa: BLE001  any error of the user's code; the environment is not used again
            reason = f"close() raised {type(error).__name__}: {error}"
    return Fault(FaultKind.CLOSES_FAILED, where, reason, user_traceback, 0)


def _with_alarm(close: Callable[[], Any], timeout_s: float) -> None:
    # It looks four times in a limit, so it notices up to a quarter late.
    watchdog = Watchdog(0.8 * timeout_s)
    with watchdog.on_guard():
        watchdog.begun, watchdog.inside = 1, True
        try:
            close()
        finally:
            watchdog.inside = False


def _in_thread(close: Callable[[], Any], timeout_s: float) -> None:
    raised: list[Exception] = []

    def run() -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001  raised below
            raised.append(error)

    thread = threading.Thread(target=run, name="marlflow-close", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise Overdue
    if raised:
        raise raised[0]
