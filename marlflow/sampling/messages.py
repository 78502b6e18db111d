"""Messages from workers to the driver, and their sources: output of environments, rate-limited, and long calls.

Text still goes to its original stream. Output of C code is not captured. A thread checks the watchdogs once a second;
C code that holds the GIL is not seen.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, TypeAlias

from marlflow.sampling.watchdog import Watchdog

_CHECK_EVERY_S = 1.0
_FIRST_S = 2.0
"""Seconds after which a call is first reported, and again at each doubling of its time."""
BURST = 20
"""Number of lines forwarded at once, per worker and per stream (output, errors, log)."""
EVERY_S = 10.0
"""Seconds after which one more line is forwarded."""
# Characters of one line.
_MAX_LINE_CHARS = 2_000
# Buffered writes before the original stream is written to.
_MAX_BUFFERED = 400
_FLUSHED_EVERY_S = 0.5
_RAY_LOGGER = "ray"


@dataclass(frozen=True, slots=True)
class Printed:
    """A line on standard output or error; `env` is the running environment, or ""."""

    worker: int
    env: str
    text: str


@dataclass(frozen=True, slots=True)
class Logged:
    """A log record, including its traceback."""

    worker: int
    env: str
    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Number of lines printed or logged but not forwarded; `file` has the printed ones, if known."""

    worker: int
    lines: int
    file: str


@dataclass(frozen=True, slots=True)
class StepRunning:
    """An environment call at `where` has run for `running_s` seconds, and returned if `is_over`."""

    worker: int
    where: str
    running_s: float
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Silent:
    """The worker's process has sent nothing for `silent_s` seconds, not even an empty message."""

    worker: int
    silent_s: float


News: TypeAlias = Printed | Logged | LeftOut | StepRunning | Silent

_KINDS: dict[str, type[News]] = {kind.__name__: kind for kind in (Printed, Logged, LeftOut, StepRunning, Silent)}


def to_bytes(news: Iterable[News]) -> bytes:
    """Encode `news` as JSON."""
    return json.dumps([[type(message).__name__, asdict(message)] for message in news]).encode()


def from_bytes(data: bytes) -> list[News]:
    """Decode the result of `to_bytes`."""
    return [_KINDS[kind](**fields) for kind, fields in json.loads(data)]


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


class LineLimit:
    """Rate limit: passes `burst` lines at once, then one per `every_s` seconds; `left_out` counts the others."""

    def __init__(self, burst: int, every_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._every_s = every_s
        self._clock_s = clock_s
        self._tokens = float(burst)
        self._at_s = clock_s()
        self._closed_until_s = -math.inf
        self.left_out = 0

    @property
    def is_closed(self) -> bool:
        """Whether the next line will be left out; cheaper than `allows`."""
        return self._clock_s() < self._closed_until_s

    def allows(self) -> bool:
        """Return whether the next line may pass."""
        now_s = self._clock_s()
        tokens = min(self._burst, self._tokens + (now_s - self._at_s) / self._every_s)
        self._at_s, passes = now_s, tokens >= 1
        self._tokens = tokens - 1 if passes else tokens
        if self._tokens < 1:
            self._closed_until_s = now_s + (1 - self._tokens) * self._every_s
        self.left_out += not passes
        return passes

    def take_left_out(self) -> int:
        """Return and reset `left_out`."""
        count, self.left_out = self.left_out, 0
        return count


class OutputCapture:
    """Captures the output of a worker whose environments `watchdog` knows, and passes it to `send`."""

    def __init__(
        self,
        worker: int,
        watchdog: Watchdog,
        send: Callable[[News], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._watchdog = watchdog
        self._send = send
        # Separate limits, so that prints at every step do not displace a warning.
        self._output, self._errors, self._log = (LineLimit(BURST, EVERY_S, clock_s) for _ in range(3))

    def install(self, level: int) -> None:
        """Capture sys.stdout and sys.stderr, and log records of `level` and above."""
        originals = (sys.stdout, sys.stderr)
        sys.stdout = _ForwardingStream(sys.stdout, self._output, self.printed)
        sys.stderr = _ForwardingStream(sys.stderr, self._errors, self.printed)
        ours = (sys.stdout, sys.stderr)
        threading.Thread(target=_flush_periodically, args=ours, name="marlflow-output", daemon=True).start()
        root = logging.getLogger()
        # If an environment's module called logging.basicConfig, its records would be forwarded twice.
        for handler in [handler for handler in root.handlers if getattr(handler, "stream", None) in originals]:
            root.removeHandler(handler)
        root.setLevel(level)
        root.addHandler(_ForwardingHandler(self))

    def printed(self, text: str) -> None:
        """Forward a printed line."""
        if text:
            self.tell_left_out()
            self._send(Printed(self._worker, self._watchdog.env(), text))

    def logged(self, record: logging.LogRecord, text: str) -> None:
        """Forward a log record, formatted as `text`."""
        if self._log.allows():
            self.tell_left_out()
            self._send(Logged(self._worker, self._watchdog.env(), record.name, record.levelno, text))

    def tell_left_out(self) -> None:
        """Report the lines left out since the last report."""
        if count := sum(limit.take_left_out() for limit in (self._output, self._errors, self._log)):
            self._send(LeftOut(self._worker, count, _file_of_output()))


# Ray flushes its streams at every write, which would cost more than everything else here.
class _ForwardingStream:
    def __init__(self, stream: Any, limit: LineLimit, tell: Callable[[str], None]) -> None:
        self._stream = stream
        self._limit = limit
        self._tell = tell
        self._lock = threading.RLock()
        self._buffered: list[str] = []
        # Index in `_buffered` at which the unfinished line begins.
        self._line_at = 0
        # The part of the unfinished line that was written out already.
        self._line_start = ""

    def write(self, text: str) -> int:
        buffered = self._buffered
        buffered.append(text)
        if text[-1:] == "\n" and self._limit.is_closed:
            # Fast path for an environment that prints at every step: count lines without joining them.
            self._limit.left_out += text.count("\n")
            self._line_at, self._line_start = len(buffered), ""
        elif "\n" in text:
            with self._lock:
                self._forward_lines()
        if len(buffered) > _MAX_BUFFERED:
            with self._lock:
                self._write_out()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._lock:
            self._write_out()
            self._stream.flush()

    def _forward_lines(self) -> None:
        count = len(self._buffered)
        *lines, self._line_start = (self._line_start + "".join(self._buffered[self._line_at : count])).split("\n")
        self._line_at = count
        for line in lines:
            if self._limit.allows():
                # A progress bar rewrites its line with carriage returns; forward its last state only.
                self._tell(line.rstrip("\r").rpartition("\r")[2].rstrip()[:_MAX_LINE_CHARS])

    def _write_out(self) -> None:
        count = len(self._buffered)
        # Bounds the memory of a line that never ends.
        self._line_start = (self._line_start + "".join(self._buffered[self._line_at : count]))[-_MAX_LINE_CHARS:]
        text = "".join(self._buffered[:count])
        # Not clear(): another thread may have appended since.
        del self._buffered[:count]
        self._line_at = 0
        if text:
            self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _ForwardingHandler(logging.Handler):
    def __init__(self, capture: OutputCapture) -> None:
        super().__init__()
        self._capture = capture

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == _RAY_LOGGER:
            return
        try:
            text = self.format(record)[:_MAX_LINE_CHARS]
        except Exception:  # noqa: BLE001  logging's own way to say that a message and its arguments do not fit
            self.handleError(record)
            return
        self._capture.logged(record, text)


def _flush_periodically(output: _ForwardingStream, errors: _ForwardingStream) -> None:
    pause = threading.Event()
    while not pause.wait(_FLUSHED_EVERY_S) and sys.stdout is output:
        output.flush()
        errors.flush()


def _file_of_output() -> str:
    with suppress(OSError):
        file = os.readlink("/proc/self/fd/1")
        return file if os.path.isfile(file) else ""
    return ""
