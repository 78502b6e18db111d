"""The results of a sweep: a table for the terminal, and `sweep.csv`."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from marlflow.cli.sweep_records import JobRecord

FILE: Final = "sweep.csv"
_FIRST, _LAST = ("job",), ("objective", "env_steps", "ended_by", "error", "folder")


def table(records: Sequence[JobRecord]) -> str:
    """Return one line per job: settings, objective and returns by policy, what ended it, folder."""
    if not records:
        return ""
    scored = ["objective"] if any(record.objective is not None for record in records) else []
    columns = scored + list(dict.fromkeys(name for record in records for name in record.metrics))
    rows = [["job", "settings", *columns, "ended by", "folder"]]
    for record in records:
        values = {"objective": record.objective, **record.metrics}
        cells = ["" if (value := values.get(name)) is None else f"{value:,.2f}" for name in columns]
        ended_by = record.ended_by or "lost"
        rows.append([str(record.number), " ".join(record.settings), *cells, ended_by, os.path.relpath(record.folder)])
    return "\n".join(_aligned(rows, right=range(2, 2 + len(columns))))


def write_csv(records: Sequence[JobRecord], folder: Path) -> None:
    """Write `sweep.csv` in a sweep's folder: a row for each job, a column for each key that varies.

    Rows of earlier sweeps in the folder stay, except those of folders that these jobs have.
    """
    rows = [_row(record, folder) for record in records]
    path = folder / FILE
    taken = {row["folder"] for row in rows}
    earlier = [row for row in _read(path) if row.get("folder") not in taken]
    names = list(dict.fromkeys(name for row in [*earlier, *rows] for name in row))
    middle = [name for name in names if name not in (*_FIRST, *_LAST)]
    partial = path.with_name(f"{FILE}.partial")
    with partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*_FIRST, *middle, *_LAST], restval="")
        writer.writeheader()
        writer.writerows([*earlier, *rows])
    partial.replace(path)


def _row(record: JobRecord, folder: Path) -> dict[str, str]:
    settings = dict(setting.partition("=")[::2] for setting in record.settings)
    values = {"objective": record.objective, "env_steps": record.env_steps, **record.metrics}
    ran_in = Path(record.folder)
    return {
        "job": str(record.number),
        **settings,
        **{name: "" if value is None else repr(value) for name, value in values.items()},
        "ended_by": record.ended_by or "lost",
        "error": record.error or "",
        "folder": str(ran_in.relative_to(folder) if ran_in.is_relative_to(folder) else ran_in),
    }


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
