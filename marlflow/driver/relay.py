"""Shows worker output on the driver, and warns of environment calls that do not return."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from time import perf_counter

from marlflow.base.sentences import enumerated
from marlflow.config.experiment import Experiment, Stop
from marlflow.sampling.messages import LeftOut, LineLimit, Logged, News, Printed, Silent, StepRunning
from marlflow.sampling.worker import worker_name

log = logging.getLogger("marlflow")

REPORT_AFTER_S = 30.0
"""Environment calls that take longer are logged repeatedly while they run."""
# Rate limit of the lines of all workers together; an environment that prints in each step would flood the console and
# run.log.
_BURST, _EVERY_S = 100, 1.0
_LEFT_OUT_EVERY_S = 60.0
"""The shortest interval between two notices of lines left out, apart from the last one."""
_MAX_NAMED = 4  # workers


class Relay:
    """Logs the messages of all workers, from any thread; `notify` shows one."""

    def __init__(self, experiment: Experiment, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._num_workers = experiment.rollouts.num_workers
        self._step_timeout_s = experiment.env.step_timeout_s
        self._bounds = _bounds(experiment.env.step_timeout_s, experiment.stop)
        self._limits = {kind: LineLimit(_BURST, _EVERY_S) for kind in (Printed, Logged)}
        # Lines of each worker left out since the last notice.
        self._left_out: dict[int, int] = {}
        self._report_left_out_at_s = 0.0
        self._files: dict[int, str] = {}
        self._running: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def __call__(self, news: News) -> None:
        """Show, log or store a message."""
        with self._lock:
            if isinstance(news, StepRunning):
                self._step(news)
            elif isinstance(news, Silent):
                log.warning("%s", self._silence(news))
            elif isinstance(news, LeftOut):
                self._leave_out(news.worker, news.lines, news.file)
            elif self._limits[type(news)].allows():
                self._show(news)
            else:
                self._leave_out(news.worker, 1, "")

    def close(self) -> None:
        """Report how many lines were left out, if any."""
        with self._lock:
            self._report_left_out()

    def running(self) -> list[str]:
        """Describe the environment calls that have been running for some seconds."""
        now_s = perf_counter()
        with self._lock:
            return [
                self._describe_running(worker, where, now_s - since) for worker, (where, since) in self._running.items()
            ]

    def _name_of(self, worker: int) -> str:
        return worker_name(worker, self._num_workers)

    def _show(self, news: Printed | Logged) -> None:
        line = f"[worker {news.worker}{f', {news.env}' if news.env else ''}] {news.text}"
        # Logged under its own logger, so that the driver's logging configuration applies.
        if isinstance(news, Logged):
            logging.getLogger(news.logger).log(news.level, "%s", line)
        else:
            log.info("%s", line)
            self._notify(line)

    def _leave_out(self, worker: int, lines: int, file: str) -> None:
        self._left_out[worker] = self._left_out.get(worker, 0) + lines
        if file and self._files.get(worker) != file:
            self._files[worker] = file
            log.info("all that %s prints is in %s, and in the .err file next to it", self._name_of(worker), file)
        if perf_counter() >= self._report_left_out_at_s:
            self._report_left_out()
            self._report_left_out_at_s = perf_counter() + _LEFT_OUT_EVERY_S

    def _report_left_out(self) -> None:
        if not self._left_out:
            return
        workers, lines = sorted(self._left_out), sum(self._left_out.values())
        self._left_out.clear()
        files = [self._files[worker] for worker in workers if worker in self._files]
        where = f"; all that it printed is in {files[0]}, and in the .err file next to it" if files else ""
        if len(workers) > 1 and files:
            folders = ", ".join(sorted({os.path.dirname(file) for file in files}))
            where = f"; all that they printed is in {folders}, and run.log names the file of each"
        text = f"[{_worker_names(workers)}] {lines:,} {'line' if lines == 1 else 'lines'} left out{where}"
        log.info("%s", text)
        self._notify(text)

    def _step(self, news: StepRunning) -> None:
        if news.is_over:
            self._running.pop(news.worker, None)
            if news.running_s >= REPORT_AFTER_S:
                name = self._name_of(news.worker)
                log.warning("%s: %s is over after %.0f s", name, news.where, news.running_s)
            return
        self._running[news.worker] = (news.where, perf_counter() - news.running_s)
        if news.running_s >= REPORT_AFTER_S:
            log.warning("%s", self._describe_running(news.worker, news.where, news.running_s))

    def _silence(self, news: Silent) -> str:
        ends = "nothing ends that; env.step_timeout_s=<seconds> would"
        if self._step_timeout_s is not None:
            ends = f"env.step_timeout_s={self._step_timeout_s:g} ends it, with its process"
        return (
            f"{self._name_of(news.worker)} has not been heard from for {news.silent_s:.0f} s: its process is stopped, "
            f"or code in C, of an environment for example, keeps Python's lock there; {ends}"
        )

    def _describe_running(self, worker: int, where: str, running_s: float) -> str:
        return f"{self._name_of(worker)}: {where} has been running for {running_s:.0f} s; {self._bounds}"


def _worker_names(workers: Sequence[int]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]}"
    return f"workers {enumerated([*map(str, workers)], _MAX_NAMED)}"


def _bounds(step_timeout_s: float | None, stop: Stop) -> str:
    if step_timeout_s is not None:
        return f"env.step_timeout_s={step_timeout_s:g} ends it"
    ends = "nothing ends it"
    if (time_s := stop.time_s) is not None:
        at_most_s = time_s + stop.grace_period_s
        limits = f"stop.time_s={time_s:g} and stop.grace_period_s={stop.grace_period_s:g}"
        ends = f"{limits} end it after {at_most_s:g} s at the latest"
    return f"{ends}; env.step_timeout_s=<seconds> would, and faults.env_hangs says how often that may happen"
