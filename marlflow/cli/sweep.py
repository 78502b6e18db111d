"""The jobs of `marlflow train -m`: which failed, and a table of all results."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig

from marlflow.base.errors import InvalidInput, MarlflowError
from marlflow.cli.failures import failure

if TYPE_CHECKING:
    from marlflow.driver.train import Result

_FAILED, _BAD_INPUT = 1, 2


@dataclass(frozen=True, slots=True)
class _Job:
    """A job that has ended: the overrides that vary, its folder, and its result or error."""

    number: int
    settings: str
    folder: Path
    outcome: Result | MarlflowError

    @property
    def result(self) -> Result | None:
        return None if isinstance(self.outcome, MarlflowError) else self.outcome


@dataclass(slots=True)
class Sweep:
    """The jobs that ended in this process; `fixed` are the keys of the overrides that all share."""

    fixed: Collection[str]
    _jobs: list[_Job] = field(default_factory=list)

    def watch(self, run: Callable[[], Result]) -> Result:
        """Run the job that Hydra has started; print an error at once, with the job's number, and raise it."""
        hydra = HydraConfig.get()
        overrides = [override.lstrip("+~") for override in hydra.overrides.task]
        settings = " ".join(override for override in overrides if override.partition("=")[0] not in self.fixed)
        number, folder = hydra.job.num, Path(hydra.runtime.output_dir)
        try:
            outcome = run()
        except MarlflowError as error:
            self._jobs.append(_Job(number, settings, folder, error))
            print(failure(error, f"job {number} ({settings})" if settings else f"job {number}"), file=sys.stderr)
            raise
        self._jobs.append(_Job(number, settings, folder, outcome))
        return outcome

    def has_printed(self, error: MarlflowError) -> bool:
        """Return whether the error is one of a job, already printed."""
        return any(job.outcome is error for job in self._jobs)

    @property
    def code(self) -> int:
        """The exit code: 0 if no job failed, 2 if all failures were bad input, else 1."""
        errors = [job.outcome for job in self._jobs if isinstance(job.outcome, MarlflowError)]
        if not errors:
            return 0
        return _BAD_INPUT if all(isinstance(error, InvalidInput) for error in errors) else _FAILED

    def table(self) -> str:
        """Return one line per job: settings, returns by policy, what ended it, folder."""
        if not self._jobs:
            return ""
        columns = list(dict.fromkeys(name for job in self._jobs for name in _final_metrics(job.result)))
        rows = [["job", "settings", *columns, "ended by", "folder"]]
        for job in self._jobs:
            metrics = _final_metrics(job.result)
            cells = [f"{metrics[name]:,.2f}" if name in metrics else "" for name in columns]
            ended = "error" if job.result is None else job.result.stopped_by
            rows.append([str(job.number), job.settings, *cells, ended, os.path.relpath(job.folder)])
        return "\n".join(_aligned(rows, right=range(2, 2 + len(columns))))


def _final_metrics(result: Result | None) -> Mapping[str, float]:
    """Return the objective and each policy's last evaluation, or without one its mean training return."""
    if result is None:
        return {}
    metrics: dict[str, float | None] = {} if result.objective is None else {"objective": result.objective}
    for name, policy in result.metrics["policies"].items():
        if policy["eval_return_mean"] is not None:
            metrics[f"{name} eval"] = policy["eval_return_mean"]
        else:
            metrics[f"{name} return"] = policy["return_mean"]
    return {name: value for name, value in metrics.items() if value is not None}


def _aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
