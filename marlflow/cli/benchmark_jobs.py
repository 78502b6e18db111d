"""Run the jobs of a benchmark, several at a time, and end them in order on a signal."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from marlflow.base.errors import CheckpointUnusable, ConfigInvalid, MarlflowError
from marlflow.base.sentences import shortened
from marlflow.base.signals import handled
from marlflow.cli.benchmark_runs import BenchmarkRun
from marlflow.cli.failures import failure
from marlflow.driver.graceful_shutdown import REASON_OF, REASONS

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Scoring:
    """How runs are scored: `policies` whose returns are summed, words of `env` by task, and the number of episodes."""

    policies: Sequence[str]
    env: Mapping[str, Sequence[str]]
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
        # Handlers only note signals: an exception may not be raised in the midst of what `wait` does with its locks.
        signals: list[int] = []
        with handled(lambda number, _: signals.append(number)), ThreadPoolExecutor(self.parallel) as pool:
            futures: dict[Future[float | None], BenchmarkRun] = {pool.submit(self._run, run): run for run in runs}
            left = set(futures)
            try:
                while left:
                    ended, left = wait(left, _POLL_S, FIRST_COMPLETED)
                    for future in ended:
                        yield futures[future], future.result()
                    if signals:
                        raise REASONS[REASON_OF[signal.Signals(signals[0])]]
            except BaseException:
                self._end(futures, signals)
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

    def _end(self, futures: dict[Future[float | None], BenchmarkRun], signals: Sequence[int]) -> None:
        """Let the running jobs finish their rounds; on one more SIGINT, end them at once."""
        # Shells and schedulers send other signals twice; only Ctrl-C means that the user will not wait.
        interrupts = signals.count(signal.SIGINT)
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
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
                if signals.count(signal.SIGINT) > interrupts:
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


@dataclass(frozen=True, slots=True)
class BenchmarkJob:
    """A job: `words` are arguments of marlflow that train the run in `folder`, empty if that is done.

    The score is the mean over `episodes` of the sum of the returns of all agents of `policies`, in the
    environment that the words `env` choose.
    """

    words: Sequence[str]
    folder: str
    policies: Sequence[str]
    env: Sequence[str]
    episodes: int

    def start(self, output: Path) -> subprocess.Popen[str]:
        """Start its process, in one thread; its output goes to a file, but the score to its standard output."""
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w", encoding="utf-8") as file:
            # In a session of its own: Ctrl-C reaches the command alone, which then ends each process once.
            return subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(asdict(self))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def run(self) -> int:
        """Train and score; return the exit code."""
        from marlflow.cli.main import main

        answer = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        if self.words and (code := main(list(self.words))):
            return code
        try:
            score = self._score()
        except MarlflowError as error:
            print(failure(error), file=sys.stderr)
            return 1
        with os.fdopen(answer, "w") as file:
            file.write(json.dumps(score))
        return 0

    def _score(self) -> float:
        from marlflow.config.other_environment import env_of_words
        from marlflow.driver.evaluate import evaluate

        env = env_of_words(self.env)
        # Strict: a score is of the last checkpoint, and of no earlier one.
        try:
            evaluated = evaluate(self.folder, episodes=self.episodes, mode="as_learned", strict=True, env=env)
        except CheckpointUnusable as unusable:
            what = unusable.problems[0].partition(", and strict=true")[0]
            problem = f"the run is over, and its last checkpoint has no score: {what}"
            remedy = f"remove {self.folder}, and the same command trains it again"
            raise CheckpointUnusable([f"{problem}; {remedy}"]) from unusable
        if evaluated.lost:
            reason = evaluated.faults[0].reason if evaluated.faults else "their environments broke"
            problem = f"{evaluated.lost:,} of {self.episodes:,} scored episodes broke ({reason}), so it has no score"
            raise ConfigInvalid([f"{problem}: that of the others would be of another kind of episodes"])
        returns = [of.team.mean.value for of in evaluated.returns if of.policy in self.policies]
        if not returns:
            raise ConfigInvalid([f"the policies of {self.folder} have no agents of their own, so it has no score"])
        return math.fsum(returns)


def _end_with_command() -> None:
    """Terminate this process in order when the command has ended, however it did."""
    os.read(0, 1)  # nothing is ever written; Python's own stdin would be locked when the process ends
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_command, name="marlflow-command", daemon=True).start()
    sys.exit(BenchmarkJob(**json.loads(sys.argv[1])).run())
