"""Notices an environment that hangs: the step that it is in is ended by an exception.

One alarm, repeating for as long as a collect lasts, looks whether the environments have moved on since it looked last;
so watching costs an env step nothing. Python code, sleeping and waiting can be interrupted this way; a computation in C
that never comes back cannot, and takes its process with it.
"""

from __future__ import annotations

import faulthandler
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType

from marlflow.base.errors import ConfigInvalid, EnvironmentHung
from marlflow.env.frames import their_frames

_LOOKS = 4  # within one timeout
_STANDARD_ERROR = 2  # by its number: sys.stderr may be anything


class Overdue(BaseException):
    """What is raised inside the environment: no `except Exception` of its own may stop it."""


class Watchdog:
    """Whoever steps environments counts in `begun` each step that it begins, and is `inside` while it does.

    Without `timeout_s` (seconds) nothing is watched. Where no exception gets through for `end_process_after_s` seconds,
    because a computation in C does not come back, the process ends, with a traceback on its standard error; that goes
    for whatever is computed on guard, so it must be longer than anything else may take. None: it goes on hanging.
    """

    def __init__(self, timeout_s: float | None, end_process_after_s: float | None = None) -> None:
        self.timeout_s, self._end_process_after_s = timeout_s, end_process_after_s
        self.begun = 0
        self.inside = False
        self._seen, self._since_s = -1, 0.0

    @contextmanager
    def on_guard(self) -> Iterator[None]:
        """An env step or reset of the environments in here takes no longer than half as much again as it may.

        Raises ConfigInvalid away from the main thread of a process: no other can be interrupted.
        """
        if self.timeout_s is None:
            yield
            return
        if threading.current_thread() is not threading.main_thread():
            raise ConfigInvalid(["env.step_timeout_s can only be kept in the main thread of a process; set it to null"])
        before = signal.signal(signal.SIGALRM, self._look)
        self._postpone_the_end()
        signal.setitimer(signal.ITIMER_REAL, self.timeout_s / _LOOKS, self.timeout_s / _LOOKS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            if self._end_process_after_s is not None:
                faulthandler.cancel_dump_traceback_later()

    def _postpone_the_end(self) -> None:
        """Sets the clock anew by which the process ends: a thread without Python, which needs nobody's leave to run."""
        if self._end_process_after_s is not None:
            faulthandler.dump_traceback_later(self._end_process_after_s, exit=True, file=_STANDARD_ERROR)

    def _look(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._postpone_the_end()
        now_s = perf_counter()
        if not self.inside or self.begun != self._seen:
            self._seen, self._since_s = self.begun, now_s
        elif self.timeout_s is not None and now_s - self._since_s >= self.timeout_s:
            self._seen = -1
            raise Overdue

    def hung(self, where: str, doing: str, error: Overdue) -> EnvironmentHung:
        """The error that `error` stands for, with the environment's own lines of the traceback."""
        own = their_frames(error)
        text = "".join(["Traceback (most recent call last):\n", *traceback.format_list(own)]) if own else ""
        return EnvironmentHung(where, f"{doing} took longer than env.step_timeout_s ({self.timeout_s:g} s)", text)
