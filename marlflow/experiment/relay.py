"""Shows on the driver what rollout workers print and log, and says where an environment does not return."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from marlflow.experiment.experiment import Experiment
from marlflow.rollout.news import LeftOut, Logged, News, Printed, StepRunning
from marlflow.rollout.output import LineLimit

log = logging.getLogger("marlflow")

SAYS_AFTER_S = 30.0
"""So long a call of an environment may take before it is said; that it has not returned yet is said again later."""
_BURST, _EVERY_S = 100, 1.0  # lines of all workers together


class Relay:
    """Takes the news of all workers, from any thread; `tell` shows a message. What it shows also goes to the log."""

    def __init__(self, experiment: Experiment, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._bounds = _bounds(experiment.env.step_timeout_s, experiment.stop.time_s)
        self._limits = {kind: LineLimit(_BURST, _EVERY_S) for kind in (Printed, Logged)}
        self._left_out: dict[int, LeftOut] = {}
        self._running: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def __call__(self, news: News) -> None:
        """Shows it, or keeps it for who asks."""
        with self._lock:
            if isinstance(news, StepRunning):
                self._step(news)
            elif isinstance(news, LeftOut):
                self._add_left_out(news.worker, news.lines, news.file)
            elif self._limits[type(news)].allows():
                self._show(news)
            else:
                self._add_left_out(news.worker, 1, "")

    def close(self) -> None:
        """Says what was left out, if anything was."""
        with self._lock:
            for worker in list(self._left_out):
                self._say_left_out(worker)

    def running(self) -> list[str]:
        """Which calls of environments have been running for some seconds, in words."""
        now_s = perf_counter()
        with self._lock:
            return [self._said(worker, where, now_s - since) for worker, (where, since) in self._running.items()]

    def _show(self, news: Printed | Logged) -> None:
        self._say_left_out(news.worker)
        line = f"[worker {news.worker}{f', {news.env}' if news.env else ''}] {news.text}"
        if isinstance(news, Logged):  # as it would be shown if it had been logged here
            logging.getLogger(news.logger).log(news.level, "%s", line)
        else:
            log.info("%s", line)
            self._tell(line)

    def _add_left_out(self, worker: int, lines: int, file: str) -> None:
        before = self._left_out.get(worker, LeftOut(worker, 0, ""))
        self._left_out[worker] = LeftOut(worker, before.lines + lines, file or before.file)

    def _say_left_out(self, worker: int) -> None:
        if (news := self._left_out.pop(worker, None)) is not None:
            where = f"; all that it printed is in {news.file}, and in .err beside it" if news.file else ""
            text = f"[worker {worker}] {news.lines:,} lines left out{where}"
            log.info("%s", text)
            self._tell(text)

    def _step(self, news: StepRunning) -> None:
        if news.is_over:
            self._running.pop(news.worker, None)
            if news.running_s >= SAYS_AFTER_S:
                log.warning("rollout worker %s: %s is over after %.0f s", news.worker, news.where, news.running_s)
            return
        self._running[news.worker] = (news.where, perf_counter() - news.running_s)
        if news.running_s >= SAYS_AFTER_S:
            log.warning("%s", self._said(news.worker, news.where, news.running_s))

    def _said(self, worker: int, where: str, running_s: float) -> str:
        return f"rollout worker {worker}: {where} has been running for {running_s:.0f} s; {self._bounds}"


def _bounds(step_timeout_s: float | None, time_s: float | None) -> str:
    if step_timeout_s is not None:
        return f"env.step_timeout_s={step_timeout_s:g} ends it"
    ends = "nothing ends it" if time_s is None else f"only stop.time_s={time_s:g} ends it"
    return f"{ends}; env.step_timeout_s=<seconds> would, and faults.env_hangs says how often that may happen"


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """Logs a warning if the body, which opens the environment `what`, takes longer than SAYS_AFTER_S."""
    text = "%s has been opening for %.0f s: it is being made, or reset for the first time, and nothing ends that"
    timer = threading.Timer(SAYS_AFTER_S, log.warning, (text, what, SAYS_AFTER_S))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
