"""Writes the results as CSV and LaTeX tables, and the evaluations as JSON of marl-eval."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

from marlflow.base.return_units import Units
from marlflow.html_report.groups import RunGroup, Task
from marlflow.html_report.measures import ALL_AGENTS, Measure, measures_of, series
from marlflow.html_report.results import GroupComparison, ResultRow, swept_settings
from marlflow.html_report.runs import ReportedRun
from marlflow.html_report.statistics import BootstrapInterval

Cell: TypeAlias = str | int | float | None

COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "curves": ("environment", "measure", "group", "run", "seed", "env_steps", "time_s", "return"),
    "settings": (
        *("environment", "measure", "setting", "value", "others", "group", "runs"),
        *("final_iqm", "final_low", "final_high"),
    ),
    "improvement": ("environment", "measure", "group", "over", "probability", "low", "high"),
}
"""Columns of files that may be without rows."""
_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
}


def columns(comparison: GroupComparison, row: ResultRow) -> dict[str, Cell]:
    """Return a row of the table by its columns; the page has the same numbers."""
    cells: dict[str, Cell] = {
        "environment": comparison.task.name,
        "measure": comparison.measure.key,
        "group": row.group.name,
        "runs": len(row.series),
        "mode": row.mode,
        "statistic": row.names.statistic,
        "interval": row.names.interval,
        "env_steps_min": row.env_steps[0],
        "env_steps_max": row.env_steps[1],
        "final_iqm": row.final.value,
        "final_low": row.final.low,
        "final_high": row.final.high,
        "final_mean": row.mean,
        "final_std": row.std,
        "best_iqm": row.best.value,
        "best_low": row.best.low,
        "best_high": row.best.high,
    }
    for number, reached in enumerate(row.reached, 1):
        cells |= {
            f"level_{number}": reached.level,
            f"level_{number}_runs": reached.runs,
            f"level_{number}_env_steps": reached.env_steps,
            f"level_{number}_time_s": reached.time_s,
        }
    return cells


def run_columns(group: RunGroup, run: ReportedRun) -> dict[str, Cell]:
    """Return a run by the columns of runs.csv."""
    return {
        "run": str(run.folder),
        "group": group.name,
        "seed": run.seed,
        "env_steps": run.env_steps,
        "stop_env_steps": run.stop_env_steps,
        "time_s": run.time_s,
        "state": run.state.name,
        "reason": run.state.reason,
    }


def point_columns(comparisons: Sequence[GroupComparison]) -> list[dict[str, Cell]]:
    """Return the points of all curves by the columns of curves.csv, the points of each run in order."""
    rows = [
        (run, row.group, comparison, one)
        for comparison in comparisons
        for row in comparison.rows
        for run, one in zip(row.runs, row.series, strict=True)
    ]
    return [
        dict(zip(COLUMNS["curves"], (*_place(comparison), group.name, str(run.folder), run.seed, *point), strict=True))
        for run, group, comparison, one in rows
        for point in zip(one.env_steps.tolist(), one.x("times_s").tolist(), one.values.tolist(), strict=True)
    ]


def setting_columns(comparisons: Sequence[GroupComparison]) -> list[dict[str, Cell]]:
    """Return the final returns over settings by the columns of settings.csv."""
    rows = [
        (
            *_place(comparison),
            *(" ".join(swept.keys), value, line.title, row.group.name, len(row.series)),
            *(row.final.value, row.final.low, row.final.high),
        )
        for comparison in comparisons
        for swept in swept_settings(comparison)
        for line in swept.lines
        for value, row in line.points
    ]
    return [dict(zip(COLUMNS["settings"], row, strict=True)) for row in rows]


def improvement_columns(comparisons: Sequence[GroupComparison]) -> list[dict[str, Cell]]:
    """Return the probabilities of improvement by the columns of improvement.csv, one for each ordered pair of groups.

    A pair without an interval has too few runs to exclude chance.
    """
    rows = [
        (*_place(comparison), first, second, better.value, better.low, better.high)
        for comparison in comparisons
        for (first, second), better in comparison.improvements().items()
    ]
    return [dict(zip(COLUMNS["improvement"], row, strict=True)) for row in rows]


def _place(comparison: GroupComparison) -> tuple[str, str]:
    return comparison.task.name, comparison.measure.key


def rows_csv(rows: Sequence[Mapping[str, Cell]], first: Sequence[str] = ()) -> str:
    """Return rows as CSV, with the columns `first` and all others that they have; unknown values are empty."""
    names = list(dict.fromkeys([*first, *(name for row in rows for name in row)]))
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([["" if (cell := row.get(name)) is None else cell for name in names] for row in rows])
    return written.getvalue()


def table_tex(comparisons: Sequence[GroupComparison]) -> str:
    r"""Return final and best returns as a LaTeX table; it needs `\usepackage{booktabs}`."""
    lines = [
        r"% Needs \usepackage{booktabs}. Interquartile means over runs, with 95 % bootstrap intervals; over 4 with",
        r"% their range; over 2 or 3, means with their range.",
        r"\begin{tabular}{lllrrr}",
        r"\toprule",
        r"Environment & Return & Group & Runs & Final & Best \\",
    ]
    for comparison in comparisons:
        digits = decimals(comparison)
        about = " ".join(f"{comparison.measure.title}: {comparison.measure.unit}, {comparison.acting}".split())
        lines += [r"\midrule", f"% {about}"]
        for row in comparison.rows:
            texts = [comparison.task.name, comparison.measure.title, row.group.name]
            numbers = [str(len(row.series)), *(_tex_interval(one, digits) for one in (row.final, row.best))]
            lines.append(" & ".join([*map(tex_escaped, texts), *numbers]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def tex_escaped(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    >>> tex_escaped("50%_a")
    '50\\%\\_a'
    """
    return "".join(_TEX.get(sign, sign) for sign in " ".join(text.split()))


def _tex_interval(one: BootstrapInterval, digits: int) -> str:
    if one.low is None or one.high is None:
        return f"${one.value:.{digits}f}$"
    return f"${one.value:.{digits}f}$ [${one.low:.{digits}f}$, ${one.high:.{digits}f}$]"


def decimals(comparison: GroupComparison) -> int:
    """Return the number of decimals for the returns of a comparison: the largest gets four digits, three below 1."""
    intervals = [one for row in comparison.rows for one in (row.final, row.best)]
    largest = max(abs(end) for one in intervals for end in (one.value, one.low, one.high) if end is not None)
    exponent = math.floor(math.log10(largest)) if 1e-6 < largest < math.inf else 0
    return max(0, 3 - exponent) if exponent >= 0 else 2 - exponent


def marl_eval(tasks: Sequence[Task], units: Units = "mean") -> str:
    """Return all evaluations in the format of marl-eval (https://github.com/instadeepai/marl-eval).

    Each list has one number, the mean over the episodes of an evaluation. `return` is the return of all agents
    together, or if that is not known of the first policy; each measure also has its own, such as `policy_prey_return`.
    `absolute_metrics` come from the evaluation in which `return` was best.
    """
    known = [(task, [one for one in measures_of(task.runs, units) if one.is_evaluated]) for task in tasks]
    known = [(task, measures) for task, measures in known if measures]
    names = _slugs([task.name for task, _ in known])
    data = {name: _of_task(task, measures) for name, (task, measures) in zip(names, known, strict=True)}
    return json.dumps({"marlflow": data}, indent=1) + "\n"


def _of_task(task: Task, measures: Sequence[Measure]) -> dict[str, Any]:
    main = next((measure for measure in measures if measure.title == ALL_AGENTS), measures[0])
    titles = _slugs([one.title for one in measures])
    named = {"return": main} | {f"{title}_return": one for title, one in zip(titles, measures, strict=True)}
    return {
        name: {
            f"run_{number}": steps
            for number, run in enumerate(group.runs, 1)
            if (steps := _steps({metric: _points(run, one) for metric, one in named.items()}))
        }
        for name, group in zip(_slugs([group.name for group in task.groups]), task.groups, strict=True)
    }


def _points(run: ReportedRun, measure: Measure) -> dict[float, float]:
    one = series(run, measure)
    return dict(zip(one.env_steps.tolist(), one.values.tolist(), strict=True))


def _steps(named: dict[str, dict[float, float]]) -> dict[str, Any]:
    known = {name: points for name, points in named.items() if points}
    # marl-eval reads only steps that have all metrics.
    steps = sorted(set.intersection(*(set(points) for points in known.values()))) if known else []
    if not steps or "return" not in known:
        return {}
    best = max(steps, key=lambda step: known["return"][step])
    return {
        **{
            f"step_{number}": {"step_count": int(step), **{name: [points[step]] for name, points in known.items()}}
            for number, step in enumerate(steps)
        },
        "absolute_metrics": {name: [points[best]] for name, points in known.items()},
    }


def _slugs(names: Sequence[str]) -> list[str]:
    slugs = [_slug(name) for name in names]
    found: list[str] = []
    for slug in slugs:
        numbered = (f"{slug}_{number}" for number in count(1))
        is_free = slugs.count(slug) == 1
        found.append(slug if is_free else next(name for name in numbered if name not in (*found, *slugs)))
    return found


def _slug(text: str) -> str:
    # marl-eval looks names up in lower case.
    return re.sub(r"[^a-z0-9.=+-]+", "_", text.lower()).strip("_")
