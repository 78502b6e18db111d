"""Numeric settings that a sweep varied, and the final returns over each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marlflow.html_report.differences import constant_within, identity, named, short_keys
from marlflow.html_report.groups import LEFT_OUT
from marlflow.html_report.results import GroupComparison, ResultRow

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

    `scale` is that of its axis: logarithmic where its values are a factor of 10 or more apart, symlog if one is 0.
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
        if all(map(_is_number, values)):
            by_values.setdefault(identity(list(values)), []).append(key)
    short = short_keys(list(known), [configs[0] for configs in of_groups])
    found = [_swept(rows, keys, known, short) for keys in by_values.values()]
    return [swept for swept in found if swept.connected or len(swept.values) >= _ENOUGH_VALUES]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
