"""The record of each job of a sweep: one file, written by the job wherever it runs, and read by the command."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from marlflow.driver.train import Result

Direction: TypeAlias = Literal["maximize", "minimize"]


@dataclass(slots=True)
class JobRecord:
    """A job of a sweep; as long as `ended_by` is empty, it is running or was lost.

    `settings` are its overrides that other jobs may not share, `metrics` returns by policy, `pid` its process.
    """

    number: int
    settings: list[str]
    folder: str
    pid: int = 0
    ended_by: str = ""
    error: str | None = None
    is_refused: bool = False
    objective: float | None = None
    env_steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The job as messages name it."""
        return f"job {self.number} ({' '.join(self.settings)})" if self.settings else f"job {self.number}"

    def end(self, result: Result) -> None:
        """Take the metrics of a run that has ended."""
        self.ended_by, self.env_steps = result.stopped_by, int(result.metrics["env_steps"])
        self.objective = _finite(result.objective)
        for name, policy in result.metrics["policies"].items():
            kind = "return" if policy["eval_return_mean"] is None else "eval"
            value = policy["return_mean" if kind == "return" else "eval_return_mean"]
            if (number := _finite(value)) is not None:
                self.metrics[f"{name} {kind}"] = number

    def fail(self, error: str, is_refused: bool) -> None:
        """Take the error of a run that failed, or was refused before it began."""
        self.ended_by, self.error, self.is_refused = "error", error, is_refused

    def write(self, folder: Path) -> None:
        """Write the record, if the command still waits for it."""
        partial = folder / f"{self.number}.partial"
        try:
            partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
            partial.replace(folder / f"{self.number}.json")
        except FileNotFoundError:
            # The command was interrupted and has removed the folder; the run's own files have everything.
            return


def read_records(folder: Path) -> list[JobRecord]:
    """Return the records in a folder, by number."""
    records = [JobRecord(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]
    return sorted(records, key=lambda record: record.number)


def best_of(records: Sequence[JobRecord], direction: Direction) -> JobRecord | None:
    """Return the job with the best objective, of several the first."""
    sign = -1.0 if direction == "maximize" else 1.0
    scored = [(sign * record.objective, record) for record in records if _is_scored(record)]  # type: ignore[operator]
    return min(scored, key=lambda pair: pair[0])[1] if scored else None


def _is_scored(record: JobRecord) -> bool:
    return record.objective is not None and record.error is None


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
