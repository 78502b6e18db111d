"""The numbers of a report: final and best returns, when a return was reached, and returns by swept setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from marlflow.base.return_units import Units
from marlflow.html_report.differences import constant_within, identity, named, short_keys
from marlflow.html_report.groups import LEFT_OUT, RunGroup, Task
from marlflow.html_report.measures import Measure, ReturnSeries, acting, measures_of, series
from marlflow.html_report.runs import ReportedRun, number
from marlflow.html_report.statistics import (
    BootstrapInterval,
    SummaryNames,
    improvement,
    iqm,
    iqm_interval,
    summary_names,
)

SHARES = (0.5, 0.9)
"""How far from the first return to the best final one the default levels are."""

TRAINING = "with exploration"
"""How policies acted in the episodes of training."""
_UNKNOWN_MODE = "mode not recorded"
_MOST_COMPARED = 10


@dataclass(frozen=True, slots=True)
class Reached:
    """When the runs of a group had a return of at least `level` for the first time.

    `env_steps` and `time_s` are medians over all runs; a run that has not reached it counts as infinite, and None is an
    infinite median.
    """

    level: float
    share: float | None
    runs: int
    env_steps: float | None
    time_s: float | None


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The results of a group in one measure: of its `runs` that have a value, with the `series` of each.

    `final` summarizes the last values of its runs, which they had after `env_steps` (least and most), `best` their best
    values. `std` is the sample's standard deviation of the last values, None for one run. `mode` is how policies acted:
    greedy, sampled, both of them, training with exploration, or empty if that is not known.
    """

    group: RunGroup
    runs: tuple[ReportedRun, ...]
    series: tuple[ReturnSeries, ...]
    final: BootstrapInterval
    mean: float
    std: float | None
    best: BootstrapInterval
    env_steps: tuple[int, int]
    reached: tuple[Reached, ...]
    mode: str

    @property
    def names(self) -> SummaryNames:
        """The names of its middle and interval."""
        return summary_names(len(self.series))

    @property
    def finals(self) -> list[float]:
        """The last value of each run."""
        return [float(one.values[-1]) for one in self.series]


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """All groups of an environment in one measure; groups in which no run has a value are not in `rows`."""

    task: Task
    measure: Measure
    rows: tuple[ResultRow, ...]
    absent: tuple[RunGroup, ...]

    @property
    def leader(self) -> ResultRow:
        """The row with the best final return, of those with several runs."""
        return max((row for row in self.rows if len(row.series) > 1), key=lambda row: row.final.value)

    @property
    def mode(self) -> str:
        """How policies acted: one phrase for all groups, or one for each kind with its groups."""
        if len(self._modes) == 1:
            return next(iter(self._modes))
        # Names of groups may have commas.
        return "; ".join(f"{mode}: {', '.join(map(repr, names))}" for mode, names in self._modes.items())

    @property
    def _modes(self) -> dict[str, list[str]]:
        by_mode: dict[str, list[str]] = {}
        for row in self.rows:
            by_mode.setdefault(row.mode or _UNKNOWN_MODE, []).append(row.group.name)
        return by_mode

    @property
    def acting(self) -> str:
        """Which episodes its returns are of, and how policies acted in them."""
        if not self.measure.is_evaluated:
            return "training, exploration included"
        is_one = len(self._modes) == 1 and self.mode != _UNKNOWN_MODE
        return f"evaluation, {self.mode} actions" if is_one else f"evaluation ({self.mode})"

    @property
    def axis(self) -> str:
        """The label of an axis of its returns: the unit, and how policies acted."""
        return f"{self.measure.unit}\n{self.acting if len(self._modes) == 1 else 'evaluation, groups act differently'}"

    @property
    def summary(self) -> str:
        """The names of middles and intervals, or empty if that is not the same in all groups of several runs."""
        names = {row.names.text for row in self.rows if len(row.series) > 1}
        return "value" if not names else names.pop() if len(names) == 1 else ""

    def improvements(self) -> dict[tuple[str, str], BootstrapInterval]:
        """Return the probability that a run of the first group ends with more than one of the second, by both names.

        All pairs of up to 10 groups; of more groups, each against the leader. Groups of a single run have none.
        """
        rows = [row for row in self.rows if len(row.series) > 1]
        found: dict[tuple[str, str], BootstrapInterval] = {}
        for place, first in enumerate(rows):
            for second in rows[place + 1 :]:
                if len(rows) <= _MOST_COMPARED or self.leader in (first, second):
                    better = improvement(first.finals, second.finals)
                    found[first.group.name, second.group.name] = better
                    found[second.group.name, first.group.name] = better.complement()
        return found


def comparisons_of(task: Task, levels: Sequence[float] = (), units: Units = "mean") -> list[GroupComparison]:
    """Return the comparisons of all measures of an environment; `levels` are the returns to reach, if given."""
    return [_comparison(task, measure, levels) for measure in measures_of(task.runs, units)]


def _comparison(task: Task, measure: Measure, levels: Sequence[float]) -> GroupComparison:
    of_groups = [
        (group, [(run, one) for run in group.runs if len(one := series(run, measure))]) for group in task.groups
    ]
    known = [(group, found) for group, found in of_groups if found]
    goals = [(level, None) for level in levels] or _default_levels([[one for _, one in found] for _, found in known])
    rows = tuple(_row(group, measure, found, goals) for group, found in known)
    return GroupComparison(task, measure, rows, tuple(group for group, found in of_groups if not found))


def _default_levels(groups: Sequence[Sequence[ReturnSeries]]) -> list[tuple[float, float | None]]:
    """Return levels between the first return of all runs and the best final one of a group; none if that is less."""
    start = float(iqm(np.array([one.values[0] for found in groups for one in found])))
    best = max(float(iqm(np.array([one.values[-1] for one in found]))) for found in groups)
    return [(start + share * (best - start), share) for share in SHARES] if best > start else []


def _row(
    group: RunGroup,
    measure: Measure,
    known: Sequence[tuple[ReportedRun, ReturnSeries]],
    goals: Sequence[tuple[float, float | None]],
) -> ResultRow:
    runs, found = zip(*known, strict=True)
    modes = sorted({mode for run in runs for mode in acting(run, measure)})
    finals = np.array([one.values[-1] for one in found])
    steps = [int(one.env_steps[-1]) for one in found]
    return ResultRow(
        group,
        runs,
        found,
        iqm_interval(finals.tolist()),
        float(finals.mean()),
        float(finals.std(ddof=1)) if len(finals) > 1 else None,
        iqm_interval([float(one.values.max()) for one in found]),
        (min(steps), max(steps)),
        tuple(_reached(found, level, share) for level, share in goals),
        " and ".join(modes) if measure.is_evaluated else TRAINING,
    )


def _reached(found: Sequence[ReturnSeries], level: float, share: float | None) -> Reached:
    firsts = [np.flatnonzero(one.values >= level)[:1] for one in found]
    reached = [(one, int(first[0])) for one, first in zip(found, firsts, strict=True) if len(first)]
    missing = [math.inf] * (len(found) - len(reached))
    return Reached(
        level,
        share,
        len(reached),
        _median([*(float(one.env_steps[at]) for one, at in reached), *missing]),
        _median([*(float(one.times_s[at]) for one, at in reached), *missing]),
    )


def _median(values: Sequence[float]) -> float | None:
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    mean = sum(middle) / len(middle)
    return mean if math.isfinite(mean) else None


MOST_DRAWN = 6
"""Settings of a comparison that are drawn; the CSV has all."""
_DECADES = 10.0
_ENOUGH_VALUES = 5
MOST_LINES = 7
"""Lines of a figure; more are drawn as single points."""


@dataclass(frozen=True, slots=True)
class SettingLine:
    """Groups that are equal in all but one setting: its values, in order, with their results.

    `title` names the other settings that vary, and is empty if there are none.
    """

    title: str
    points: tuple[tuple[float, ResultRow], ...]


@dataclass(frozen=True, slots=True)
class SweptSetting:
    """A setting with a number in each group; `keys` are several if their values are always equal.

    Lines are not `connected` if they would be too many, or of single points, as in a random search: then there is one
    line with all groups.

    `scale` is the scale of its axis: logarithmic if its values are a factor of 10 or more apart, symlog if one is 0.
    """

    name: str
    keys: tuple[str, ...]
    lines: tuple[SettingLine, ...]
    connected: bool

    @property
    def values(self) -> list[float]:
        """All its values, in order."""
        return sorted({value for line in self.lines for value, _ in line.points})

    @property
    def scale(self) -> Literal["linear", "log", "symlog"]:
        """The scale of its axis."""
        least, *others = self.values
        if least > 0 and others[-1] >= _DECADES * least:
            return "log"
        return "symlog" if least == 0 and len(others) > 1 and others[-1] >= _DECADES * others[0] else "linear"


def swept_settings(comparison: GroupComparison) -> list[SweptSetting]:
    """Return the settings of a comparison that are numbers in all groups, and differ between some.

    A setting of fewer than 5 values is left out if no two groups are equal in all others: it would compare these.
    """
    rows = comparison.rows
    of_groups = [[run.config for run in row.group.runs] for row in rows]
    if not all(config for configs in of_groups for config in configs):
        return []
    known = constant_within(of_groups, (*LEFT_OUT, "name"))
    by_values: dict[str, list[str]] = {}
    for key, values in known.items():
        if all(number(value) is not None for value in values):
            by_values.setdefault(identity(list(values)), []).append(key)
    short = short_keys(list(known), [configs[0] for configs in of_groups])
    found = [_swept(rows, keys, known, short) for keys in by_values.values()]
    # Whole numbers beyond 2^53 may differ, and be the same float.
    return [swept for swept in found if len(swept.values) >= (2 if swept.connected else _ENOUGH_VALUES)]


def _swept(
    rows: Sequence[ResultRow], keys: Sequence[str], known: Mapping[str, Sequence[Any]], short: Mapping[str, str]
) -> SweptSetting:
    by_others: dict[str, list[tuple[float, ResultRow]]] = {}
    for place, row in enumerate(rows):
        title = named({key: values[place] for key, values in known.items() if key not in keys}, short)
        by_others.setdefault(title, []).append((float(known[keys[0]][place]), row))
    connected = len(by_others) <= MOST_LINES and any(len(points) > 1 for points in by_others.values())
    if not connected:
        by_others = {"": [point for points in by_others.values() for point in points]}
    lines = (SettingLine(title, tuple(sorted(of, key=lambda point: point[0]))) for title, of in by_others.items())
    return SweptSetting(" = ".join(short[key] for key in keys), tuple(keys), tuple(lines), connected)
