"""Passes on what environments print, log and warn in a process whose terminal nobody sees.

Text still goes where it went before, in full; what is passed on is limited, so that an environment that prints at every
step floods nothing. What code in C writes is not seen here.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from marlflow.rollout.news import LeftOut, Logged, News, Printed
from marlflow.rollout.watchdog import Watchdog

BURST = 20
"""So many lines of one worker's output, errors and log, each, are passed on at once."""
EVERY_S = 10.0
"""And one more for each so many seconds that have passed."""
_LONGEST = 2_000  # characters of one line
_OF_RAY = "ray"


class LineLimit:
    """Lets `burst` lines pass at once, and one more after each `every_s` seconds; `left_out` counts the others."""

    def __init__(self, burst: int, every_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._every_s, self._clock_s = burst, every_s, clock_s
        self._room, self._at_s = float(burst), clock_s()
        self.left_out = 0

    def allows(self) -> bool:
        """Whether the next line may pass."""
        now_s = self._clock_s()
        room = min(self._burst, self._room + (now_s - self._at_s) / self._every_s)
        self._at_s, passes = now_s, room >= 1
        self._room = room - 1 if passes else room
        self.left_out += not passes
        return passes

    def take_left_out(self) -> int:
        """How many were left out since the last call."""
        count, self.left_out = self.left_out, 0
        return count


class OutputCapture:
    """Of worker `worker`, whose environments `watchdog` watches; `send` is given what is passed on."""

    def __init__(
        self,
        worker: int,
        watchdog: Watchdog,
        send: Callable[[News], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker, self._watchdog, self._send = worker, watchdog, send
        # Apart, so that prints at every step do not displace a warning.
        self._output, self._errors, self._log = (LineLimit(BURST, EVERY_S, clock_s) for _ in range(3))

    def install(self, level: int) -> None:
        """From here on sys.stdout and sys.stderr are watched, and so are log records from `level` up."""
        old = (sys.stdout, sys.stderr)
        sys.stdout = _Watched(sys.stdout, partial(self.printed, self._output))
        sys.stderr = _Watched(sys.stderr, partial(self.printed, self._errors))
        root = logging.getLogger()
        # An environment's module may have called logging.basicConfig: its records would come twice.
        for handler in [one for one in root.handlers if getattr(one, "stream", None) in old]:
            root.removeHandler(handler)
        root.setLevel(level)
        root.addHandler(_Forward(self))

    def printed(self, limit: LineLimit, text: str) -> None:
        """A line was printed."""
        if limit.allows():
            self.tell_left_out()
            self._send(Printed(self._worker, self._watchdog.env(), text))

    def logged(self, record: logging.LogRecord, text: str) -> None:
        """A record was logged; `text` is how it reads."""
        if self._log.allows():
            self.tell_left_out()
            self._send(Logged(self._worker, self._watchdog.env(), record.name, record.levelno, text))

    def tell_left_out(self) -> None:
        """Says how much was left out, if anything was since the last time."""
        if count := sum(limit.take_left_out() for limit in (self._output, self._errors, self._log)):
            self._send(LeftOut(self._worker, count, _file_of_output()))


class _Watched:
    """A text stream that passes on each line that is written to it."""

    def __init__(self, stream: Any, tell: Callable[[str], None]) -> None:
        self._stream, self._tell = stream, tell
        self._lock, self._begun = threading.RLock(), ""

    def write(self, text: str) -> int:
        written: int = self._stream.write(text)
        with self._lock:
            self._begun += text
            if "\n" in text or len(self._begun) > _LONGEST:
                *lines, self._begun = self._begun.split("\n")
                if len(self._begun) > _LONGEST:  # a line without end
                    lines.append(self._begun)
                    self._begun = ""
                for line in lines:
                    # Of a progress bar, which returns to the start of its line, only the last state.
                    if shown := line.rstrip("\r").rpartition("\r")[2].rstrip():
                        self._tell(shown[:_LONGEST])
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Forward(logging.Handler):
    def __init__(self, capture: OutputCapture) -> None:
        super().__init__()
        self._capture = capture

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == _OF_RAY:
            return
        try:
            text = self.format(record)[:_LONGEST]
        except Exception:  # noqa: BLE001  logging's own way to say that a message and its arguments do not fit
            self.handleError(record)
            return
        self._capture.logged(record, text)


def _file_of_output() -> str:
    """The file that standard output goes to, "" if it is none."""
    with suppress(OSError):
        file = os.readlink("/proc/self/fd/1")
        return file if os.path.isfile(file) else ""
    return ""
