"""`marlflow train -m`: have Hydra run the jobs, here or by a launcher, then show all results."""

from __future__ import annotations

import logging
import math
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from marlflow.base.errors import MarlflowError, RuntimeFailed
from marlflow.base.links import check_links
from marlflow.cli.arguments import CONFIG_DIR, key_of
from marlflow.cli.sweep_jobs import JobFailed, SweepJob, finished_on_signal
from marlflow.cli.sweep_records import Direction, JobRecord, best_of, check_csv, read_records, table, write_csv
from marlflow.config.compose import GRID_SWEEPER, PLUGIN, composing, config_loader, hand_to_hydra, is_installed
from marlflow.config.overrides import Prepared
from marlflow.observe.report import is_of_evaluation

_FAILED, _BAD_INPUT = 1, 2
_HYDRA_KEY = re.compile(r"[+~]*hydra[./](?!searchpath=)")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep: its `words` and `config_dirs` as typed, to run a job again, and the `config` of the first job.

    `fixed` are the keys of the overrides that all jobs share, `folder` is the sweep's folder. With a `direction`, the
    best job is shown.
    """

    words: Sequence[str]
    config_dirs: Sequence[str]
    config: DictConfig
    fixed: Sequence[str]
    folder: Path
    direction: Direction | None

    def run(self, hydra_words: Sequence[str]) -> int:
        """Run all jobs with Hydra's command line, print their table, write sweep.csv, and return the exit code."""
        check_csv(self.folder)
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
                # Raised by Optuna, which cannot choose if all jobs have failed.
                if not (jobs := read_records(records)) or any(job.error is None for job in jobs):
                    raise
            except KeyboardInterrupt:
                if "slurm" in launcher:
                    print("submitted jobs continue; scancel ends them", file=sys.stderr)
                raise
            except MarlflowError:
                raise
            except Exception as error:
                if "BasicLauncher" in launcher:
                    raise
                # Raised by joblib or submitit after a process was killed, for example because memory ran out.
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
        if self.direction is None:
            return
        if (best := best_of(jobs, self.direction)) is not None:
            print(f"best: job {best.number}, {self.config.objective} {best.objective:,.6g}; to run it again:")
            print(f"  {shlex.join(self._words_of(best))}")
        elif any(record.error is None for record in jobs):  # others have said why they failed
            print(f"no job is the best: {self.config.objective} has a number in none of them")

    def _words_of(self, record: JobRecord) -> list[str]:
        fixed = [word for word in self.words if not _HYDRA_KEY.match(word) and key_of(word) in self.fixed]
        is_named_sweep = self.config.hydra.mode is RunMode.MULTIRUN  # in the configuration, not by -m
        folders = [word for folder in self.config_dirs for word in (CONFIG_DIR, folder)]
        mode = ["hydra.mode=RUN"] if is_named_sweep else []
        return ["marlflow", "train", *folders, *fixed, *record.settings, *mode]


def direction_of(config: DictConfig) -> Direction | None:
    """Return how a sweeper uses the objectives; None if it runs all values."""
    if not optimizes(config):
        return None
    direction: Any = config.hydra.sweeper.get("direction", "minimize")
    return "maximize" if getattr(direction, "name", direction) == "maximize" else "minimize"


def _prepare_optuna() -> None:
    if not is_installed("optuna"):
        return
    import optuna

    # The messages are in the table, and in the sweeper's lines.
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


# Choices of Hydra's groups, with the plugin and the extra that they come with.
_PLUGINS = {
    "hydra/sweeper=optuna": (PLUGIN, "optuna"),
    "hydra/launcher=joblib": ("hydra_plugins.hydra_joblib_launcher", "joblib"),
    "hydra/launcher=submitit_local": ("hydra_plugins.hydra_submitit_launcher", "submitit"),
    "hydra/launcher=submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "submitit"),
}
_DIRECTIONS = ("maximize", "minimize")


def optimizes(config: DictConfig) -> bool:
    """Return whether the sweeper chooses values by the objectives of earlier jobs."""
    return str(config.hydra.sweeper._target_) != GRID_SWEEPER


def extra_problems(overrides: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each sweeper or launcher that is not installed; before Hydra looks for it."""
    for override in overrides:
        choice = override.lstrip("+").replace(" ", "")
        if choice in _PLUGINS and not is_installed(_PLUGINS[choice][0]):
            plugin, extra = _PLUGINS[choice]
            name = plugin.rpartition(".")[2].replace("_", "-")
            yield f"{choice} needs {name}, which is not installed: pip install 'marlflow[{extra}]'"


def sweep_problems(ready: Prepared) -> Iterator[str]:
    """Yield the problems of a sweep as a whole."""
    config = ready.config
    sweeper = str(config.hydra.sweeper._target_).rpartition(".")[2]
    if "joblib" in str(config.hydra.launcher._target_) and config.hydra.launcher.n_jobs == 0:
        yield "hydra.launcher.n_jobs must be the number of jobs at a time, or -1 for one for each CPU, not 0"
    if not optimizes(config):
        for interval in ready.intervals:
            yield (
                f"{interval} has no values to run one by one; list some, or have values chosen: "
                "hydra/sweeper=optuna, or marlflow tune"
            )
        return
    yield from objective_problems(config, f"the sweeper {sweeper}")
    if sweeper == "OptunaSweeper":
        yield from _optuna_problems(config.hydra.sweeper)
        yield from _interval_problems(ready.intervals, str(config.hydra.sweeper.sampler.get("_target_")))


def _interval_problems(intervals: Sequence[str], sampler: str) -> Iterator[str]:
    with composing():
        overrides = OverridesParser.create(config_loader()).parse_overrides(list(intervals))
    for override in overrides:
        if sampler.endswith("GridSampler"):
            yield f"{override.input_line} has any number of values, and the sampler grid runs all; list some"
        elif (problem := interval_problem(override.get_key_element(), override.value())) is not None:
            yield problem


def interval_problem(key: str, interval: Any) -> str | None:
    """Return why no number can be drawn from Hydra's `interval`; None if one can."""
    low, high, is_log = interval.start, interval.end, "log" in interval.tags
    if others := sorted(set(interval.tags) - {"log"}):
        return f"{key}: an interval may have the tag log, not {others[0]}"
    if not (low < high and math.isfinite(low) and math.isfinite(high)) or (is_log and low <= 0):
        needs = "finite, above 0 and increasing" if is_log else "finite and increasing"
        return f"{key}: the ends of interval({low}, {high}) must be {needs}"
    return None


def objective_problems(config: DictConfig, chooser: str) -> Iterator[str]:
    """Yield a problem if `chooser`, which goes by the objective of each job, would not have one."""
    if config.get("objective") is None:
        yield (
            f"{chooser} goes by a figure of each job, and objective is null; set "
            "objective=policies.<id>.return_mean, or policies.<id>.eval_return_mean, or run all values with "
            "marlflow train -m"
        )
    elif _is_never_evaluated(config):
        yield (
            f"objective={config.objective} is of evaluations, and there are none; set evaluation.final_episodes=20, "
            "or take return_mean, that of training"
        )


def _is_never_evaluated(config: DictConfig) -> bool:
    evaluation = OmegaConf.select(config, "evaluation")
    if evaluation is None or not is_of_evaluation(str(config.objective)):
        return False
    return not (evaluation.episodes or evaluation.final_episodes)


def _optuna_problems(sweeper: Any) -> Iterator[str]:
    if getattr(sweeper.direction, "name", sweeper.direction) not in _DIRECTIONS:
        yield f"hydra.sweeper.direction must be maximize or minimize, not {sweeper.direction}: a run has one objective"
    for name in ("n_trials", "n_jobs"):
        if not isinstance(count := sweeper[name], int) or count < 1:
            yield f"hydra.sweeper.{name} must be at least 1, not {count}"
    rate = sweeper.max_failure_rate
    if not isinstance(rate, int | float) or not 0 <= rate <= 1:
        yield f"hydra.sweeper.max_failure_rate must be from 0 to 1, not {rate}"
    if re.match(r"\w+(\+\w+)?://", str(sweeper.storage or "")) and not str(sweeper.storage).startswith("redis"):
        yield from _database_problems(sweeper.storage)


def _database_problems(storage: str) -> Iterator[str]:
    # Optuna 2 relies on what SQLAlchemy 2 has removed, and Alembic from 1.14 on needs SQLAlchemy 2 in parts.
    too_new = [
        f"{package} {found}"
        for package, limit in (("SQLAlchemy", (2,)), ("alembic", (1, 14)))
        if (found := _version(package)) is not None and tuple(map(int, found.split(".")[:2])) >= limit
    ]
    if too_new:
        yield (
            f"hydra.sweeper.storage={storage}: this version of Optuna cannot write a database with "
            f"{' and '.join(too_new)}; pip install 'sqlalchemy<2' 'alembic<1.14', or leave storage out"
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
