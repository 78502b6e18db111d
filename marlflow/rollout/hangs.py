"""Says of an environment that does not return from a call where it is, while it is still there.

A thread looks once a second at the watchdogs, so an env step costs nothing more. It needs Python's lock: a computation
in C that keeps the lock is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import perf_counter

from marlflow.rollout.news import StepRunning
from marlflow.rollout.watchdog import Watchdog

_LOOK_EVERY_S = 1.0
_FIRST_S = 2.0
"""After so long a call is told of, and again each time that it has taken twice as long as when it was told of last."""


class HangMonitor:
    """Watches the `watchdogs` of workers, by number, until it is closed; calls `tell` in a thread of its own."""

    def __init__(
        self, watchdogs: Mapping[int, Watchdog], tell: Callable[[StepRunning], None], first_s: float = _FIRST_S
    ) -> None:
        self._calls = [_Call(worker, watchdog, tell, first_s) for worker, watchdog in watchdogs.items()]
        self._every_s = min(_LOOK_EVERY_S, first_s / 2)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_again_and_again, name="marlflow-hangs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._over.set()
        self._thread.join()

    def _look_again_and_again(self) -> None:
        while not self._over.wait(self._every_s):
            for call in self._calls:
                call.look(perf_counter())


class _Call:
    """What was seen last of one watchdog's environments."""

    def __init__(self, worker: int, watchdog: Watchdog, tell: Callable[[StepRunning], None], first_s: float) -> None:
        self._worker, self._watchdog, self._tell, self._first_s = worker, watchdog, tell, first_s
        self._seen, self._since_s, self._next_s = -1, 0.0, first_s
        self._told: str | None = None

    def look(self, now_s: float) -> None:
        watchdog = self._watchdog
        begun = watchdog.begun
        if begun == self._seen and watchdog.is_busy:
            running_s = now_s - self._since_s
            if running_s >= self._next_s:
                self._told, self._next_s = watchdog.where(), 2 * self._next_s
                self._tell(StepRunning(self._worker, self._told, running_s))
            return
        if self._told is not None:
            self._tell(StepRunning(self._worker, self._told, now_s - self._since_s, is_over=True))
        self._seen, self._since_s, self._next_s, self._told = begun, now_s, self._first_s, None
