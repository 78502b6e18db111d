"""Write a report on finished and running runs: a page that needs no network, and its numbers as files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import replacing
from marlflow.base.progress import tracked
from marlflow.base.return_units import Units
from marlflow.base.sentences import enumerated
from marlflow.html_report.evaluations import evaluations
from marlflow.html_report.extras import leagues, videos
from marlflow.html_report.files import (
    COLUMNS,
    columns,
    improvement_columns,
    marl_eval,
    point_columns,
    rows_csv,
    run_columns,
    setting_columns,
    table_tex,
)
from marlflow.html_report.groups import BY_CONFIGURATION, Grouping, tasks_of
from marlflow.html_report.page import GENERATOR, PageContent, notes_of, render, view_of
from marlflow.html_report.results import GroupComparison, comparisons_of
from marlflow.html_report.runs import read_runs

PAGE = "index.html"


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A written report: its files, the numbers of runs and groups, and the sentences on limits that the page has."""

    files: tuple[Path, ...]
    runs: int
    groups: int
    notes: tuple[str, ...]
    comparisons: tuple[GroupComparison, ...]


def write_report(
    folders: Sequence[Path],
    out: Path,
    levels: Sequence[float] = (),
    grouping: Grouping = BY_CONFIGURATION,
    units: Units = "mean",
) -> WrittenReport:
    """Write a report on the runs in some folders into `out`; `levels` are returns that they should have reached.

    `units` is the unit of the returns of policies: means per agent, or sums over a policy's agents.

    Raises ConfigInvalid if a folder has no runs that can be read, if `grouping` names keys that they do not have or
    environments that cannot be compared, or if `out` cannot be written to.
    """
    _check(out)
    runs, notes = read_runs(folders)
    tasks = tasks_of(runs, grouping)
    compared = [comparisons_of(task, levels, units) for task in tasks]
    groups = [group for task in tasks for group in task.groups]
    found, of_leagues = leagues(groups)
    evaluated, of_evaluations = evaluations(groups, units)
    shown, of_videos = videos(groups, out)
    content = PageContent(
        tuple(
            view_of(task, of, number)
            for number, (task, of) in tracked("drawing", list(enumerate(zip(tasks, compared, strict=True), 1)))
        ),
        (*notes, *of_leagues, *of_evaluations, *of_videos),
        tuple(found),
        tuple(shown),
        tuple(evaluated),
        metadata.version("marlflow"),
        grouping,
        units,
    )
    comparisons = tuple(comparison for of in compared for comparison in of)
    runs_of = [run_columns(group, run) for group in groups for run in group.runs]
    tables = {
        "table": [columns(comparison, row) for comparison in comparisons for row in comparison.rows],
        "improvement": improvement_columns(comparisons),
        "settings": setting_columns(comparisons),
        "runs": runs_of,
        "evaluations": [one.columns() for one in evaluated],
    }
    written = _write(
        out,
        {
            PAGE: render(content),
            **{f"{name}.csv": rows_csv(rows, COLUMNS.get(name, ())) for name, rows in tables.items()},
            "curves.csv": rows_csv(point_columns(comparisons), COLUMNS["curves"]),
            "table.tex": table_tex(comparisons),
            "marl_eval.json": marl_eval(tasks, units),
            "report.json": json.dumps(tables, indent=1) + "\n",
        },
    )
    return WrittenReport(written, len(runs), len(groups), tuple(notes_of(content)), comparisons)


_FILES = (
    *(f"{name}.csv" for name in ("table", "improvement", "settings", "runs", "evaluations", "curves")),
    "table.tex",
    "marl_eval.json",
    "report.json",
)
"""What a report writes besides its page."""


def _check(out: Path) -> None:
    """Raise ConfigInvalid if `out` has files of another program, which a report would replace."""
    try:
        page = (out / PAGE).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        if others := [name for name in _FILES if os.path.lexists(out / name)]:
            problem = f"out: {out} has {enumerated(others)}, and no report of marlflow; choose another directory"
            raise ConfigInvalid([problem]) from None
        return
    except OSError as error:
        raise ConfigInvalid([f"out: {out / PAGE} cannot be read: {error}; choose another directory"]) from error
    if f'name="generator" content="{GENERATOR}"' not in page:
        raise ConfigInvalid([f"out: {out / PAGE} is not a report of marlflow; choose another directory"])


def _write(out: Path, contents: dict[str, str]) -> tuple[Path, ...]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            with replacing(out / name) as aside:
                aside.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigInvalid([f"out: {out} cannot be written to: {error}; choose another directory"]) from error
    return tuple(out / name for name in contents)
