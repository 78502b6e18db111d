"""The records of the jobs of a sweep: one file each, written wherever it runs, and their table, also as `sweep.csv`."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import replacing
from marlflow.base.sentences import aligned

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
        # Without the folder the command was interrupted; the run's own files have everything.
        with suppress(FileNotFoundError), replacing(folder / f"{self.number}.json") as path:
            path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def settings_of(overrides: Iterable[str], fixed: Collection[str]) -> list[str]:
    """Return a job's overrides of keys that are not `fixed`; of several of one key the last, which it has.

    >>> settings_of(["seed=0", "a.b=null", "++a.b=3"], {"seed"})
    ['a.b=3']
    """
    bare = [override.lstrip("+~") for override in overrides]
    by_key = {override.partition("=")[0]: override for override in bare}
    return [override for key, override in by_key.items() if key not in fixed]


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


FILE: Final = "sweep.csv"
_FOLDER: Final = "folder"
_FIRST, _LAST = ("job",), ("objective", "env_steps", "ended_by", "error", _FOLDER)
_REMEDY: Final = "move it away, or choose another hydra.sweep.dir"


def table(records: Sequence[JobRecord]) -> str:
    """Return one line per job: settings, objective and returns by policy, what ended it, folder."""
    if not records:
        return ""
    scored = ["objective"] if any(record.objective is not None for record in records) else []
    returns = list(dict.fromkeys(name for record in records for name in record.metrics))
    rows = [["job", "settings", *scored, *returns, "ended by", "folder"]]
    for record in records:
        cells = [] if not scored else ["" if record.objective is None else f"{record.objective:,.6g}"]
        cells += [f"{record.metrics[name]:,.2f}" if name in record.metrics else "" for name in returns]
        ended_by = record.ended_by or "lost"
        rows.append([str(record.number), " ".join(record.settings), *cells, ended_by, os.path.relpath(record.folder)])
    return "\n".join(aligned(rows, right=range(2, 2 + len(scored) + len(returns))))


def write_csv(records: Sequence[JobRecord], folder: Path) -> None:
    """Write `sweep.csv` in a sweep's folder: a row for each job, a column for each key that varies.

    Rows of earlier sweeps in the folder stay, unless one of these jobs ran in the same folder.
    """
    path = folder / FILE
    earlier = _read(path)[1]
    # A job is refused where another one has run before it.
    kept = {row[_FOLDER] for row in earlier}
    pairs = [(record, _row(record, folder)) for record in records]
    rows = [row for record, row in pairs if not (record.is_refused and row[_FOLDER] in kept)]
    taken = {row[_FOLDER] for row in rows}
    earlier = [row for row in earlier if row[_FOLDER] not in taken]
    names = list(dict.fromkeys(name for row in [*earlier, *rows] for name in row))
    middle = [name for name in names if name not in (*_FIRST, *_LAST)]
    with replacing(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*_FIRST, *middle, *_LAST], restval="")
        writer.writeheader()
        writer.writerows([*earlier, *rows])


def check_csv(folder: Path) -> None:
    """Raise ConfigInvalid if a sweep's folder has a `sweep.csv` that cannot be read, or that no sweep has written."""
    path = folder / FILE
    try:
        names, rows = _read(path)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigInvalid([f"{path} cannot be read: {error}; {_REMEDY}"]) from error
    if names and _FOLDER not in names:
        raise ConfigInvalid([f"{path} is not of a sweep: it has no column {_FOLDER!r}; {_REMEDY}"])
    # The reader puts cells beyond the last column under None, and None into missing ones.
    if any(None in row or None in row.values() for row in rows):
        raise ConfigInvalid([f"{path} is damaged: a row has more or fewer cells than the table has columns; {_REMEDY}"])


def _row(record: JobRecord, folder: Path) -> dict[str, str]:
    settings = {
        # The objective is the number; which one it is, where it differs, has another name.
        ("objective of the job" if name == "objective" else name): value
        for name, _, value in (setting.partition("=") for setting in record.settings)
    }
    values = {"objective": record.objective, "env_steps": record.env_steps, **record.metrics}
    ran_in = Path(record.folder)
    return {
        "job": str(record.number),
        **settings,
        **{name: "" if value is None else repr(value) for name, value in values.items()},
        "ended_by": record.ended_by or "lost",
        "error": record.error or "",
        _FOLDER: str(ran_in.relative_to(folder) if ran_in.is_relative_to(folder) else ran_in),
    }


def _read(path: Path) -> tuple[Sequence[str], list[dict[str, str]]]:
    """Return the names of the columns, and the rows; neither if there is no such file."""
    if not path.exists():
        return (), []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        return reader.fieldnames or (), list(reader)
