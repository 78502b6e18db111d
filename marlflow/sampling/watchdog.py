"""Environment calls in bounded time: a watchdog that interrupts hanging ones, deadlines, and closing.

A repeating alarm checks for progress, at no cost per env step. Python code, sleeping, and waiting can be interrupted; C
code that never returns cannot, and the process is ended.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import FrameType
from typing import Any, Final, Protocol

from marlflow.base.errors import ConfigInvalid, EnvironmentFailed, EnvironmentHung, FaultKind
from marlflow.base.limits import ClockLimit, Limit
from marlflow.env.episode_location import their_frames
from marlflow.sampling.receipts import Fault

HAS_ALARM: Final = hasattr(signal, "SIGALRM")
"""False on Windows."""
# Checks per timeout.
_CHECKS_PER_TIMEOUT = 4
# Between two checks if there is a deadline.
_MAX_CHECK_INTERVAL_S = 1.0
# The file descriptor, because sys.stderr may be replaced.
_STANDARD_ERROR = 2
CLOSE_TIMEOUT_S = 10.0
"""Seconds for closing all environments of a process, or a broken one."""


class Overdue(BaseException):
    """Raised inside the environment; not an Exception, so that no `except Exception` there stops it."""


class NamedEnv(Protocol):
    """The environment being called, for messages."""

    def where(self) -> str:
        """Describe environment, number, episode seed, and env step."""
        ...

    def name(self) -> str:
        """Return the environment's name and number."""
        ...


class Watchdog:
    """Limits environment calls to `timeout_s` seconds (None: no limit).

    If no exception gets through for `end_process_after_s` seconds (None: never), the process ends with a traceback on
    standard error. This covers all of `on_guard`, so it must exceed any other computation there.

    Once `limit` has passed, no env step starts; it interrupts none.
    """

    def __init__(
        self, timeout_s: float | None, end_process_after_s: float | None = None, limit: Limit | None = None
    ) -> None:
        self.timeout_s, self._end_process_after_s = timeout_s, end_process_after_s
        self._limit = ClockLimit() if limit is None else limit
        # Callers count each call and set `inside` during it: plain attributes, because this is done at every env step.
        self.begun = 0
        self.inside = False
        # Whether an environment is being made, which has no limit.
        self.loading = False
        # The environment and the call, for reports.
        self.playing: NamedEnv | None = None
        self.doing = ""
        # After it, a call longer than its grace period is interrupted.
        self.deadline: Deadline | None = None
        # The number of the call at the last check, and when it was first seen.
        self._seen = -1
        self._since_s = 0.0
        # Whether Python collects garbage: exceptions in callbacks of the collector are printed and dropped.
        self._collecting = False

    @property
    def is_late(self) -> bool:
        """Whether no further env step starts: the deadline or the limit has passed."""
        return (self.deadline is not None and self.deadline.has_passed) or self._limit.has_passed()

    @property
    def is_busy(self) -> bool:
        """Whether an environment is being called."""
        return self.inside or self.loading

    def where(self) -> str:
        """Describe the call and its environment."""
        return f"{self.playing.where() if self.playing else 'an environment'}: {self.doing}"

    def env(self) -> str:
        """Return the name of the environment being called, or ""."""
        return self.playing.name() if self.playing and self.is_busy else ""

    @contextmanager
    def on_guard(self) -> Iterator[None]:
        """Limit env steps and resets in this context, to at most 1.5 times their limit.

        With a timeout, raises ConfigInvalid outside of the main thread, which alone can be interrupted.
        """
        limits_s = [] if self.timeout_s is None else [self.timeout_s]
        if self.deadline is not None:
            limits_s.append(min(max(self.deadline.grace_period_s, 0.1), _CHECKS_PER_TIMEOUT * _MAX_CHECK_INTERVAL_S))
        intervals_s = [limit_s / _CHECKS_PER_TIMEOUT for limit_s in limits_s]
        is_main = threading.current_thread() is threading.main_thread()
        # In other threads a deadline is kept between calls only.
        if not intervals_s or (self.timeout_s is None and not is_main):
            yield
            return
        if not is_main:
            raise ConfigInvalid(["env.step_timeout_s can only be kept in the main thread of a process; set it to null"])
        if not HAS_ALARM:
            if self.timeout_s is None:
                yield
                return
            raise ConfigInvalid(["env.step_timeout_s needs the signal SIGALRM, which Windows has not; set it to null"])
        before = signal.signal(signal.SIGALRM, self._check)
        self._rearm_process_timeout()
        # An environment may be closed inside of another guard, whose alarm continues afterwards.
        left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, min(intervals_s), min(intervals_s))
        gc.callbacks.insert(0, self._begin_collecting)
        gc.callbacks.append(self._end_collecting)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
            signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)
            gc.callbacks.remove(self._begin_collecting)
            gc.callbacks.remove(self._end_collecting)
            if self._end_process_after_s is not None:
                faulthandler.cancel_dump_traceback_later()

    def _rearm_process_timeout(self) -> None:
        if self._end_process_after_s is not None:
            # A C thread: it runs even if the main thread never releases the GIL.
            faulthandler.dump_traceback_later(self._end_process_after_s, exit=True, file=_STANDARD_ERROR)

    # The first and the last callback of a collection, so that `_collecting` holds during all others.
    def _begin_collecting(self, phase: str, info: dict[str, int]) -> None:
        del info
        self._collecting |= phase == "start"

    def _end_collecting(self, phase: str, info: dict[str, int]) -> None:
        del info
        self._collecting &= phase == "start"

    def _check(self, number: int, frame: FrameType | None) -> None:
        del number
        self._rearm_process_timeout()
        # Our own two callbacks are interrupted, too, before they set `_collecting` and after they clear it.
        in_callback = frame is not None and frame.f_code in _CALLBACKS
        if self._collecting or in_callback:
            # The next check comes in time.
            return
        now_s = perf_counter()
        # There is a new call since the last check, or none: its time starts now, at most one check late.
        if not self.inside or self.begun != self._seen:
            self._seen, self._since_s = self.begun, now_s
        elif self.timeout_s is not None and now_s - self._since_s >= self.timeout_s:
            self._seen = -1
            raise Overdue(f"took longer than env.step_timeout_s ({self.timeout_s:g} s)")
        elif (end := self.deadline) is not None and end.interrupts(self._since_s, now_s):
            self._seen = -1
            taken_s = now_s - self._since_s
            raise Overdue(f"was abandoned after {taken_s:.3g} s: stop.time_s was over, and stop.grace_period_s used up")

    def hung_error(self, where: str, doing: str, error: Overdue) -> EnvironmentHung:
        """Convert `error` to one with the environment's traceback lines."""
        frames = their_frames(error)
        text = "".join(["Traceback (most recent call last):\n", *traceback.format_list(frames)]) if frames else ""
        return EnvironmentHung(where, f"{doing} {error}", text)


_CALLBACKS = (Watchdog._begin_collecting.__code__, Watchdog._end_collecting.__code__)


def close_by(timeout_s: float | None = None) -> float:
    """Return the deadline (perf_counter) for closing environments; None: in CLOSE_TIMEOUT_S."""
    return perf_counter() + (CLOSE_TIMEOUT_S if timeout_s is None else timeout_s)


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


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline in seconds of time.perf_counter: no episode or step starts after `at_s`.

    A running environment call is interrupted at most `grace_period_s` seconds later.
    """

    at_s: float
    grace_period_s: float

    @staticmethod
    def after(left_s: float, grace_period_s: float) -> Deadline:
        """Return the deadline in `left_s` seconds."""
        return Deadline(perf_counter() + left_s, grace_period_s)

    @property
    def has_passed(self) -> bool:
        """Whether the deadline has passed."""
        return perf_counter() >= self.at_s

    def interrupts(self, began_s: float, now_s: float) -> bool:
        """Return whether to interrupt an environment call begun at `began_s`."""
        return now_s >= self.at_s and now_s >= min(began_s, self.at_s) + self.grace_period_s

    def __reduce__(self) -> Any:
        # Pickled as the remaining seconds, because the clocks of processes differ.
        return Deadline.after, (self.at_s - perf_counter(), self.grace_period_s)
