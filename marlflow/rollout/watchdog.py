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
from typing import Protocol

from marlflow.base.errors import ConfigInvalid, EnvironmentHung
from marlflow.env.frames import their_frames
from marlflow.rollout.deadline import Deadline

_LOOKS = 4  # within one timeout
_LONGEST_LOOK_S = 1.0  # between two looks where there is a deadline
_STANDARD_ERROR = 2  # by its number: sys.stderr may be anything


class Overdue(BaseException):
    """What is raised inside the environment, with the reason: no `except Exception` of its own may stop it."""


class Playing(Protocol):
    """An environment that is being called, as far as its place has to be named."""

    def where(self) -> str:
        """The present moment in words: environment, copy, episode seed, env step."""
        ...

    def name(self) -> str:
        """The copy in words."""
        ...


class Watchdog:
    """Whoever steps environments counts in `begun` each call that it begins, and is `inside` while it does.

    `playing` is the environment that is called, and `doing` what is called, for others to say where a worker is. While
    an environment is made, which may take any time, it is `loading`. At the `deadline`, if there is one, a call that
    has taken longer than its grace is interrupted, as one is that takes longer than `timeout_s`.

    Without `timeout_s` (seconds) nothing is watched. Where no exception gets through for `end_process_after_s` seconds,
    because a computation in C does not come back, the process ends, with a traceback on its standard error; that goes
    for whatever is computed on guard, so it must be longer than anything else may take. None: it goes on hanging.
    """

    def __init__(self, timeout_s: float | None, end_process_after_s: float | None = None) -> None:
        self.timeout_s, self._end_process_after_s = timeout_s, end_process_after_s
        self.begun = 0
        self.inside = self.loading = False
        self.playing: Playing | None = None
        self.doing = ""
        self.deadline: Deadline | None = None
        self._seen, self._since_s = -1, 0.0

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and self.deadline.has_passed

    @property
    def is_busy(self) -> bool:
        """Whether an environment is being called."""
        return self.inside or self.loading

    def where(self) -> str:
        """What is called, and where, in words."""
        return f"{self.playing.where() if self.playing else 'an environment'}: {self.doing}"

    def env(self) -> str:
        """The copy of the environment that is being called, "" if none is."""
        return self.playing.name() if self.playing and self.is_busy else ""

    @contextmanager
    def on_guard(self) -> Iterator[None]:
        """An env step or reset of the environments in here takes no longer than half as much again as it may.

        Raises ConfigInvalid away from the main thread of a process if there is a timeout: no other thread can be
        interrupted.
        """
        looks_s = [limit_s / _LOOKS for limit_s in self._limits_s]
        is_main = threading.current_thread() is threading.main_thread()
        if not looks_s or (self.timeout_s is None and not is_main):
            yield
            return
        if not is_main:
            raise ConfigInvalid(["env.step_timeout_s can only be kept in the main thread of a process; set it to null"])
        before = signal.signal(signal.SIGALRM, self._look)
        self._postpone_the_end()
        signal.setitimer(signal.ITIMER_REAL, min(looks_s), min(looks_s))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            if self._end_process_after_s is not None:
                faulthandler.cancel_dump_traceback_later()

    @property
    def _limits_s(self) -> list[float]:
        """How long a call may take, in seconds, by the timeout and by the deadline's grace."""
        grace_s = [] if self.deadline is None else [min(max(self.deadline.grace_s, 0.1), _LOOKS * _LONGEST_LOOK_S)]
        return grace_s if self.timeout_s is None else [self.timeout_s, *grace_s]

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
            raise Overdue(f"took longer than env.step_timeout_s ({self.timeout_s:g} s)")
        elif (end := self.deadline) is not None and end.gives_up(self._since_s, now_s):
            self._seen = -1
            taken_s = now_s - self._since_s
            raise Overdue(f"was given up after {taken_s:.3g} s: stop.time_s was over, and stop.grace_s used up")

    def hung(self, where: str, doing: str, error: Overdue) -> EnvironmentHung:
        """The error that `error` stands for, with the environment's own lines of the traceback."""
        own = their_frames(error)
        text = "".join(["Traceback (most recent call last):\n", *traceback.format_list(own)]) if own else ""
        return EnvironmentHung(where, f"{doing} {error}", text)
