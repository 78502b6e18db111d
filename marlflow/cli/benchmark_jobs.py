"""Run the jobs of a benchmark, several at a time, and end them in order on a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from marlflow.base.sentences import shortened
from marlflow.cli.benchmark_job import BenchmarkJob
from marlflow.cli.benchmark_runs import BenchmarkRun
from marlflow.driver.graceful_shutdown import REASON_OF, REASONS, HungUp, Terminated


@dataclass(frozen=True, slots=True)
class Scoring:
    """How runs are scored: `policies` whose returns are summed, settings `env` by task, and the number of episodes."""

    policies: Sequence[str]
    env: dict[str, dict[str, object]]
    episodes: int


@dataclass(slots=True)
class BenchmarkJobs:
    """Runs jobs in processes, at most `parallel` at a time."""

    scoring: Scoring
    parallel: int
    _processes: set[subprocess.Popen[str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_ending: bool = False

    def run(self, runs: Sequence[BenchmarkRun]) -> Iterator[tuple[BenchmarkRun, float | None]]:
        """Yield each run and its score as it ends, None if it failed; raises KeyboardInterrupt or one of its kind."""
        with _signals_raised(), ThreadPoolExecutor(self.parallel) as pool:
            futures: dict[Future[float | None], BenchmarkRun] = {pool.submit(self._run, run): run for run in runs}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                self._end(futures)
                raise

    def _run(self, run: BenchmarkRun) -> float | None:
        with self._lock:
            if self._is_ending:
                return None
            scoring = self.scoring
            env = scoring.env[run.task]
            job = BenchmarkJob(run.begin(), str(run.folder), scoring.policies, env, scoring.episodes)
            process = job.start(output_of(run))
            self._processes.add(process)
        with process:
            assert process.stdout is not None
            said = process.stdout.read()
            # Before its standard input is closed, which would terminate it.
            code = process.wait()
        with self._lock:
            self._processes.remove(process)
        return float(said) if code == 0 else None

    def _end(self, futures: dict[Future[float | None], BenchmarkRun]) -> None:
        """Let the running jobs finish their rounds; on a second signal, end them at once."""
        with self._lock:
            self._is_ending = True
            running = list(self._processes)
        for future in futures:
            future.cancel()
        if running:
            print("the running jobs finish their round; interrupt again to stop at once", file=sys.stderr, flush=True)
        for process in running:
            process.terminate()
        for process in running:
            while process.poll() is None:
                try:
                    process.wait()
                except (Terminated, HungUp):
                    continue  # shells and schedulers send these twice; only Ctrl-C means that the user will not wait
                except KeyboardInterrupt:
                    for one in running:
                        with suppress(ProcessLookupError):
                            os.killpg(one.pid, signal.SIGKILL)


def output_of(run: BenchmarkRun) -> Path:
    """Return the file with what a run's process printed."""
    return run.folder.with_name(f"{run.folder.name}.txt")


def failure_of(run: BenchmarkRun) -> str:
    """Return the last that a failed run's process printed, and where all of it is."""
    path = output_of(run)
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("error: ") if lines else "its process was killed"
    return f"{shortened(last)}; {os.path.relpath(path)} has all that it printed"


@contextmanager
def _signals_raised() -> Iterator[None]:
    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise REASONS[REASON_OF[signal.Signals(number)]]

    before = {number: signal.getsignal(number) for number in REASON_OF}
    for number, handler in before.items():
        # SIGHUP is ignored under nohup, and has to stay so.
        if handler != signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
