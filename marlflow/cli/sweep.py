"""`marlflow train -m`: have Hydra run the jobs, here or by a launcher, then show all results."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig

from marlflow.base.errors import MarlflowError, RuntimeFailed
from marlflow.base.links import check_links
from marlflow.cli.hydra_command import hand_to_hydra
from marlflow.cli.parallel_jobs import finished_on_signal
from marlflow.cli.sweep_checks import optimizes
from marlflow.cli.sweep_job import JobFailed, SweepJob
from marlflow.cli.sweep_records import Direction, JobRecord, best_of, read_records
from marlflow.cli.sweep_table import table, write_csv
from marlflow.config.optuna_defaults import is_installed

_FAILED, _BAD_INPUT = 1, 2
_HYDRA_KEY = re.compile(r"[+~]*hydra[./]")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep: its `words` as typed, for a user to run a job again, and the `config` of the first job.

    `fixed` are the keys of the overrides that all jobs share, `folder` is that of the sweep. With a `direction`, the
    best job is shown.
    """

    words: Sequence[str]
    config: DictConfig
    fixed: Sequence[str]
    folder: Path
    direction: Direction | None

    def run(self, hydra_words: Sequence[str]) -> int:
        """Run all jobs with Hydra's command line, print their table, write sweep.csv, and return the exit code."""
        with records_in(self.folder) as records:
            if optimizes(self.config):
                _prepare_optuna()
            job = SweepJob(frozenset(self.fixed), records, str(Path.cwd()), optimizes(self.config))
            launcher = str(self.config.hydra.launcher._target_)
            # The processes of joblib are the command's own, and end with it.
            watched = finished_on_signal(records) if "joblib" in launcher else nullcontext()
            try:
                with watched:
                    hand_to_hydra(hydra_words, job)
            except JobFailed:  # printed by the job, and one more row of the table
                pass
            except ValueError:
                # Optuna's, which has nothing to choose from when all jobs have failed.
                if not (jobs := read_records(records)) or any(job.error is None for job in jobs):
                    raise
            except KeyboardInterrupt:
                if "slurm" in launcher:
                    print("jobs that are submitted go on; scancel ends them", file=sys.stderr)
                raise
            except MarlflowError:
                raise
            except Exception as error:
                if "BasicLauncher" in launcher:
                    raise
                # joblib's or submitit's, after a process was killed, by a lack of memory for example.
                why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                raise RuntimeFailed(f"a process of the sweep was lost, with the job in it ({why})") from error
            finally:
                self.show(jobs := read_records(records), is_remote="submitit" in launcher)
        return exit_code(jobs)

    def show(self, jobs: Sequence[JobRecord], is_remote: bool) -> None:
        """Print the table of all jobs and the best of them, and write sweep.csv; of remote jobs, print errors too."""
        if is_remote:
            for record in jobs:
                if record.error is not None:
                    print(f"error: {record.name}: {record.error}", file=sys.stderr)
        if not jobs:
            return
        print(table(jobs))
        write_csv(jobs, self.folder)
        if self.direction is not None and (best := best_of(jobs, self.direction)) is not None:
            print(f"best: job {best.number}, {self.config.objective} {best.objective:,.6g}; to run it again:")
            print(f"  {shlex.join(self._words_of(best))}")

    def _words_of(self, record: JobRecord) -> list[str]:
        fixed = [word for word in self.words if not _HYDRA_KEY.match(word) and _key(word) in self.fixed]
        is_named_sweep = self.config.hydra.mode is RunMode.MULTIRUN  # in the configuration, not by -m
        return ["marlflow", "train", *fixed, *record.settings, *(["hydra.mode=RUN"] if is_named_sweep else [])]


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def direction_of(config: DictConfig) -> Direction | None:
    """Return what a sweeper does with the objectives; None if it runs all values."""
    if not optimizes(config):
        return None
    direction: Any = config.hydra.sweeper.get("direction", "minimize")
    return "maximize" if getattr(direction, "name", direction) == "maximize" else "minimize"


def _prepare_optuna() -> None:
    if not is_installed("optuna"):
        return
    import optuna

    # Its messages are in the table, and in the sweeper's lines.
    optuna.logging.set_verbosity(logging.WARNING)
    stop = optuna.study.Study.stop

    def stop_if_running(study: optuna.study.Study) -> None:
        # A grid's last trial stops the study, which is an error outside of Study.optimize. Hydra's sweeper knows of it,
        # but not if that trial failed.
        with suppress(RuntimeError):
            stop(study)

    optuna.study.Study.stop = stop_if_running  # type: ignore[assignment, method-assign]


def exit_code(records: Sequence[JobRecord]) -> int:
    """Return 0 if no job failed, 2 if all failures were bad input, else 1."""
    failed = [record for record in records if record.error is not None or not record.ended_by]
    if not failed:
        return 0
    return _BAD_INPUT if all(record.is_refused for record in failed) else _FAILED


@contextmanager
def records_in(folder: Path) -> Iterator[Path]:
    """Make a folder for records of jobs in a sweep's, where all machines of the sweep can write."""
    folder.mkdir(parents=True, exist_ok=True)
    check_links(folder)
    records = Path(tempfile.mkdtemp(prefix=".jobs-", dir=folder))
    try:
        yield records
    finally:
        shutil.rmtree(records, ignore_errors=True)
