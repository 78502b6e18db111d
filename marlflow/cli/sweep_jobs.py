"""The jobs of `marlflow train -m`, in the command's process or in one that a launcher has started.

On a signal to the command, jobs of other processes finish their round and take a checkpoint. A cluster's own signal
before it ends a job, SIGUSR2 or what SUBMITIT_PREEMPT_SIGNAL names, ends the run in order, with a checkpoint; then
submitit's handler requeues the job, and the job that starts again finds its run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from marlflow.base.errors import ConfigInvalid, InvalidInput, MarlflowError
from marlflow.base.signals import handled
from marlflow.cli.failures import failure
from marlflow.cli.job import outcome, recorded
from marlflow.cli.sweep_records import JobRecord, read_records, settings_of
from marlflow.driver.graceful_shutdown import REASON_OF, REASONS, Terminated

if TYPE_CHECKING:
    from marlflow.driver.train import Result


STOP: Final = "stop"
"""Name of the file in the folder of records after which no further job begins."""
_sweeps_of_this_process: set[str] = set()


class JobFailed(MarlflowError):
    """A job of a sweep failed, was refused or interrupted; its error is printed, and in its record."""


@dataclass(frozen=True, slots=True)
class SweepJob:
    """The function that Hydra calls for each job; it is pickled if a launcher starts processes.

    `fixed` are the keys of the overrides that all jobs share, `records` is where each job leaves its record, `cwd` the
    folder of the command. With `optimizes`, a sweeper needs an objective of each job.
    """

    fixed: frozenset[str]
    records: Path
    cwd: str
    optimizes: bool

    def __post_init__(self) -> None:
        _sweeps_of_this_process.add(str(self.records))

    def __call__(self, config: DictConfig) -> float | None:
        """Run the job and return its objective.

        Raises JobFailed, and in the command's own process the exception of a signal that ended the run.
        """
        record = self._begin()
        if str(self.records) in _sweeps_of_this_process:
            return self._run(config, record)
        with _elsewhere(config, self.cwd), requeued_on_signal():
            try:
                value = self._run(config, record)
            except KeyboardInterrupt as ended:
                raise JobFailed(f"{record.name}: {type(ended).__name__}") from ended
            finally:
                print(f"{record.name} ended by {record.ended_by}", flush=True)
        return value

    def _begin(self) -> JobRecord:
        hydra = HydraConfig.get()
        settings = settings_of(hydra.overrides.task, self.fixed)
        record = JobRecord(hydra.job.num, settings, hydra.runtime.output_dir, os.getpid())
        if (self.records / STOP).exists():
            raise JobFailed(f"{record.name} did not begin")
        record.write(self.records)
        return record

    def _run(self, config: DictConfig, record: JobRecord) -> float | None:
        try:
            result = _train(config, Path(record.folder))
        except MarlflowError as error:
            self._fail(record, failure(error, record.name), str(error), isinstance(error, InvalidInput), error)
        except Exception as error:
            # Sweepers and launchers may show neither its traceback nor its message.
            print(f"{traceback.format_exc()}\nerror: {record.name}: {error}", file=sys.stderr, flush=True)
            record.fail(f"{type(error).__name__}: {error}", is_refused=False)
            raise
        except KeyboardInterrupt as ended:
            record.ended_by = next((reason for reason, kind in REASONS.items() if type(ended) is kind), "interrupted")
            raise
        else:
            record.end(result)
            value = outcome(result)
            if self.optimizes and record.objective is None:
                reason = f"the objective is {value} at the end of the run, so the sweeper cannot use this job"
                self._fail(record, f"error: {record.name}: {reason}", reason, False, None)
            return value
        finally:
            record.write(self.records)

    def _fail(
        self, record: JobRecord, text: str, reason: str, is_refused: bool, error: MarlflowError | None
    ) -> NoReturn:
        print(text, file=sys.stderr, flush=True)
        record.fail(reason, is_refused)
        raise JobFailed(f"{record.name}: {reason}") from error


def _train(config: DictConfig, run_dir: Path) -> Result:
    from marlflow.checks.validation import from_config
    from marlflow.config.folders import existing_run_problems
    from marlflow.driver.train import resume, train

    if restarted_run(run_dir):
        return resume(from_config(config), run_dir, files=recorded(config))
    if problems := list(existing_run_problems(run_dir)):  # first: whatever is logged goes to a file in it
        raise ConfigInvalid(problems)
    return train(from_config(config), run_dir, files=recorded(config))


@contextmanager
def _elsewhere(config: DictConfig, cwd: str) -> Iterator[None]:
    """Make another process like the command's: its import path, plain output, and signals that end the run only."""
    # The command's own main does this in its process.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    if OmegaConf.select(config, "log.console") in ("auto", "live"):  # several jobs may share the terminal
        OmegaConf.update(config, "log.console", "plain")
    terminated = signal.signal(signal.SIGTERM, _raise_terminated)
    interrupted = signal.getsignal(signal.SIGINT)
    if is_submitted():
        interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    # The command blocks the signal for processes that wait for a job, which it would end at once.
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGTERM, terminated)
        signal.signal(signal.SIGINT, interrupted)


def _raise_terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


_POLL_S = 0.05


@contextmanager
def finished_on_signal(records: Path) -> Iterator[None]:
    """On a first signal, let the running jobs end in order, begin no more, and raise; on a second, raise at once."""
    has_come = False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        reason = REASONS[REASON_OF[signal.Signals(number)]]
        if has_come:
            raise reason
        has_come = True
        (records / STOP).touch()
        print("the running jobs finish their round; interrupt again to stop at once", file=sys.stderr)
        # Processes of the same terminal have received SIGINT already, and a second signal adds nothing.
        for pid in _running(records):
            os.kill(pid, signal.SIGTERM)
        while _running(records):
            time.sleep(_POLL_S)
        raise reason

    released = threading.Event()
    # SIGINT is blocked in the processes that this thread starts, or one that waits for a job would end on Ctrl-C and
    # take all others with it. Another thread receives it for this process.
    receiver = threading.Thread(target=released.wait, name="marlflow-interrupt", daemon=True)
    try:
        with handled(end):
            receiver.start()
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
                released.set()
    finally:
        _end_processes()


def _end_processes() -> None:
    # joblib would keep them for its next call, with SIGINT blocked.
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _running(records: Path) -> list[int]:
    """Return the processes of jobs that have not ended."""
    return [record.pid for record in read_records(records) if not record.ended_by and _exists(record.pid)]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_submitted() -> bool:
    """Return whether this process runs a job of submitit."""
    return "SUBMITIT_EXECUTOR" in os.environ


@contextmanager
def requeued_on_signal() -> Iterator[None]:
    """End the run in order when the cluster is about to end the job, then let submitit requeue it."""
    number = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}", None)
    requeue = None if number is None or not is_submitted() else signal.getsignal(number)
    if number is None or not callable(requeue):
        yield
        return
    has_come = False

    def end_run(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(number, end_run)
    try:
        yield
    except Exception:
        if has_come:  # exits, or raises if the job may not be requeued
            requeue(number, None)
        raise
    finally:
        signal.signal(number, requeue)


def restarted_run(run_dir: Path) -> bool:
    """Return whether `run_dir` has a checkpoint of this very job, which was requeued.

    Files that the job wrote before its first checkpoint are moved aside.
    """
    from marlflow.base.errors import CheckpointUnusable
    from marlflow.base.links import check_links
    from marlflow.config.folders import existing_run_problems
    from marlflow.runs.saved_runs import newest

    written = run_dir / ".hydra" / "hydra.yaml"
    if not is_submitted() or not written.is_file():
        return False
    check_links(run_dir)
    # submitit's number of a job is a cluster's own, which a requeued job keeps.
    if OmegaConf.select(OmegaConf.load(written), "hydra.job.id") != HydraConfig.get().job.id:
        return False
    try:
        newest(run_dir)
    except CheckpointUnusable:
        if any(existing_run_problems(run_dir)):
            _move_aside(run_dir)
        return False
    return True


def _move_aside(run_dir: Path) -> None:
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}_unfinished_{number}")).exists():
        number += 1
    run_dir.rename(aside)
    run_dir.mkdir()
