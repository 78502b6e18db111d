"""Report long environment calls while they run.

A thread checks the watchdogs once a second; C code that holds the GIL is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import perf_counter

from marlflow.sampling.messages import StepRunning
from marlflow.sampling.watchdog import Watchdog

_CHECK_EVERY_S = 1.0
_FIRST_S = 2.0
"""Seconds after which a call is first reported, and again at each doubling of its time."""


class HangMonitor:
    """Watches `watchdogs`, by worker, until closed; calls `tell` in its own thread."""

    def __init__(
        self, watchdogs: Mapping[int, Watchdog], tell: Callable[[StepRunning], None], first_s: float = _FIRST_S
    ) -> None:
        self._calls = [_Call(worker, watchdog, tell, first_s) for worker, watchdog in watchdogs.items()]
        self._every_s = min(_CHECK_EVERY_S, first_s / 2)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marlflow-hangs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            for call in self._calls:
                call.check(perf_counter())


class _Call:
    def __init__(self, worker: int, watchdog: Watchdog, tell: Callable[[StepRunning], None], first_s: float) -> None:
        self._worker = worker
        self._watchdog = watchdog
        self._tell = tell
        self._first_s = first_s
        self._seen = -1
        self._since_s = 0.0
        self._next_s = first_s
        self._reported: str | None = None

    def check(self, now_s: float) -> None:
        watchdog = self._watchdog
        num_calls = watchdog.begun
        # Still the same call as at the last check.
        if num_calls == self._seen and watchdog.is_busy:
            running_s = now_s - self._since_s
            if running_s >= self._next_s:
                self._reported, self._next_s = watchdog.where(), 2 * self._next_s
                self._tell(StepRunning(self._worker, self._reported, running_s))
            return
        if self._reported is not None:
            self._tell(StepRunning(self._worker, self._reported, now_s - self._since_s, is_over=True))
        self._seen = num_calls
        self._since_s = now_s
        self._next_s = self._first_s
        self._reported = None
