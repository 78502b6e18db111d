"""One trial of `marlflow tune`, in the process of its actor."""

from __future__ import annotations

import math
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig

from marlflow.base.errors import InvalidInput, MarlflowError
from marlflow.cli.arguments import Words
from marlflow.cli.failures import failure
from marlflow.cli.job import prepared, recorded
from marlflow.cli.sweep_records import JobRecord
from marlflow.config.compose import run_job
from marlflow.driver.train import Result, train
from marlflow.observe.callback import Callback, StopRun
from marlflow.observe.report import Report, metric


class _JudgedReports(Callback):
    """Gives each report's objective to the scheduler, and stops the run when it says so.

    A report before the first update has none: its episodes are the same in all trials that learn the same later, and a
    comparison of equal trials would end nobody, at the price of the env steps up to the next one.
    """

    def __init__(self, objective: str, reported: Callable[[int, float | None], bool]) -> None:
        self._objective, self._reported = objective, reported

    def reported(self, record: Report) -> StopRun | None:
        value = metric(record, self._objective)
        has_learned = any(learner["updates"] > 0 for learner in record["learners"].values())
        known = None if value is None or not math.isfinite(value) or not has_learned else float(value)
        return None if self._reported(int(record["env_steps"]), known) else StopRun("others are better")


@dataclass(frozen=True, slots=True)
class TuneTrial:
    """The trials that an actor runs: `jobs` are the overrides of all trials; `fixed` keys are the same in each.

    `folder` is that of the sweep, `records` is where each trial leaves its record, `cwd` the folder of the command.
    """

    jobs: tuple[tuple[str, ...], ...]
    fixed: frozenset[str]
    config_dirs: tuple[str, ...]
    folder: Path
    records: Path
    cwd: str
    objective: str

    def __call__(self, number: int, reported: Callable[[int, float | None], bool]) -> None:
        """Run the trial of a number; its error, if any, is in its record."""
        os.chdir(self.cwd)
        if self.cwd not in sys.path:
            sys.path.insert(0, self.cwd)
        overrides = [override.lstrip("+~") for override in self.jobs[number]]
        settings = [override for override in overrides if override.partition("=")[0] not in self.fixed]
        folder = self.folder / str(number)
        record = JobRecord(number, settings, str(folder), os.getpid())
        record.write(self.records)
        try:
            record.end(self._train(number, folder, reported))
        except MarlflowError as error:
            record.fail(failure(error).removeprefix("error: "), isinstance(error, InvalidInput))
        except Exception:  # noqa: BLE001  the command shows it
            record.fail(traceback.format_exc(), is_refused=False)
        finally:
            record.write(self.records)

    def _train(self, number: int, folder: Path, reported: Callable[[int, float | None], bool]) -> Result:
        from marlflow.checks.validation import from_config

        ready = prepared(Words(overrides=list(self.jobs[number]), config_dirs=list(self.config_dirs)))
        results: list[Result] = []

        def run(job: DictConfig) -> None:
            experiment = from_config(job, ready.problems)
            callbacks = {**experiment.callbacks, "tune": _JudgedReports(self.objective, reported)}
            # Trials share the terminal, so they do not write to it.
            quiet = replace(experiment, callbacks=callbacks, log=replace(experiment.log, console="none"))
            results.append(train(quiet, folder, files=recorded(job)))

        # Hydra would resolve an interpolation in the path.
        run_job(ready.config, str(folder).replace("${", "\\${"), run)
        return results[0]
