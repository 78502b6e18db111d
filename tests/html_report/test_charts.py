"""What the figures of a report say: labels are where their values are, and curves where the numbers of the CSV are."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlflow.html_report.charts import CurveLine, drawn_curves, look
from marlflow.html_report.measures import ReturnSeries
from marlflow.html_report.report import write_report
from tests.html_report.written import config, evaluated, write_run, write_seeds
from tests.observe.axes import assert_labels_are_true, axes_in


def page_of(tmp_path: Path, *folders: Path) -> str:
    write_report(list(folders), tmp_path / "out")
    return (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


RANGES: dict[str, list[float]] = {
    "quarters": [0.0, 0.25, 0.75, 1.0],
    "small": [0.001, 0.002, 0.004],
    "tiny": [1e-7, 3e-7, 5e-7],
    "tiny around zero": [-3e-7, 0.0, 5e-7],
    "far from zero": [100_000.1, 100_000.2, 100_000.4],
    "negative": [-1217.2, -700.0, -152.1],
    "large": [1e6, 2e6, 3.5e6],
    "larger": [1e9, 4e9],
    "beyond suffixes": [1e17, 4e17],
    "narrow": [199.9999, 200.0],
    "constant": [200.0, 200.0],
    "one": [12.5],
    "hundredths": [0.0, 0.03, 0.07],
}


@pytest.mark.parametrize("values", RANGES.values(), ids=RANGES)
def test_labels_of_returns_are_where_their_values_are(tmp_path: Path, values: list[float]) -> None:
    page = page_of(tmp_path, write_run(tmp_path / "run", evaluated(values), config()))
    found = axes_in(page)
    assert {axis.kind for axis in found} == {"x", "y"}
    for axis in found:
        assert_labels_are_true(axis)


@pytest.mark.parametrize("every", [1, 40, 1000, 12_500, 10_000_000])
@pytest.mark.parametrize("start", [0, 123_456_789])
def test_labels_of_env_steps_are_where_their_values_are(tmp_path: Path, every: int, start: int) -> None:
    reports = evaluated([1.0, 2.0, 3.0], every)
    for line in reports:
        line["env_steps"] += start
        line["policies"]["prey"]["eval_env_steps"] += start
    for axis in axes_in(page_of(tmp_path, write_run(tmp_path / "run", reports, config()))):
        assert_labels_are_true(axis)


@pytest.mark.parametrize("seconds", [0.4, 30.0, 400.0, 40_000.0, 4e6])
def test_elapsed_time_has_labels_in_its_unit(tmp_path: Path, seconds: float) -> None:
    reports = evaluated([1.0, 2.0, 3.0])
    for number, line in enumerate(reports, 1):
        line["time_s"] = seconds * number / 3
    page = page_of(tmp_path, write_run(tmp_path / "run", reports, config()))
    axis = axes_in(page)[2]
    assert_labels_are_true(axis)
    (unit,) = re.findall(r">elapsed time \((\w+)\)</text>", page)
    per_s = {"s": 1.0, "min": 60.0, "h": 3600.0}[unit]
    last = max(end for end, _ in drawn_ends(page, 1))
    assert axis.value_at(last) * per_s == pytest.approx(seconds, rel=0.01)


def test_a_report_without_times_has_no_axis_of_time(tmp_path: Path) -> None:
    reports = [{**line, "time_s": None} for line in evaluated([1.0, 2.0])]
    assert "over elapsed time" not in page_of(tmp_path, write_run(tmp_path / "run", reports, config()))


def drawn_ends(page: str, figure: int) -> list[tuple[float, float]]:
    """The last point of each curve of a figure, thin ones too, in points from its upper left corner."""
    svg = re.findall(r"<svg viewBox[^>]*id=.*?</svg>", page, re.DOTALL)[figure]
    paths = re.findall(r'<path d="([^"]*)" clip-path[^>]*fill: none[^>]*series-', svg)
    return [tuple(map(float, path.split()[-2:])) for path in paths]


def rows(tmp_path: Path, name: str) -> list[dict[str, str]]:
    with (tmp_path / "out" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_curves_end_where_the_csv_says(tmp_path: Path) -> None:
    page = page_of(tmp_path, write_seeds(tmp_path / "sweep", [[0.0, 0.5, 0.75], [0.0, 0.4, 0.3], [0.0, 0.1, 0.25]]))
    steps, returns, times, returns_again = axes_in(page)
    (row,) = rows(tmp_path, "table")
    points = rows(tmp_path, "curves")
    assert len(points) == 9
    # Of each run its last point, and of their mean.
    expected = sorted([*(float(one["return"]) for one in points[2::3]), float(row["final_iqm"])])
    for figure, (across, up, last) in enumerate([(steps, returns, 3000.0), (times, returns_again, 30.0)]):
        ends = drawn_ends(page, figure)
        assert [across.value_at(at) for at, _ in ends] == pytest.approx([last] * 4, rel=1e-3)
        assert sorted(up.value_at(at) for _, at in ends) == pytest.approx(expected, abs=2e-3)


SWEEPS: dict[str, tuple[list[Any], str]] = {
    "rates": ([1e-4, 3e-4, 1e-2], "log"),
    "half a decade": ([1e-4, 3e-4], "linear"),
    "counts": ([2, 4, 8], "linear"),
    "with zero": ([0.0, 1e-3, 1e-2, 0.1], "symlog"),
    "negative": ([-10.0, 0.0, 10.0], "linear"),
    "many": ([float(value) for value in np.linspace(0.9, 0.999, 25)], "linear"),
    "many rates": ([float(value) for value in np.geomspace(1e-6, 1.0, 40)], "log"),
    "large": ([1000, 20_000, 3_000_000], "log"),
}


@pytest.mark.parametrize(("values", "scale"), SWEEPS.values(), ids=SWEEPS)
def test_a_swept_setting_has_its_values_on_its_axis(tmp_path: Path, values: list[Any], scale: str) -> None:
    folders = [write_seeds(tmp_path / str(at), [[1.0 + at]] * 2, rate=value) for at, value in enumerate(values)]
    page = page_of(tmp_path, *folders)
    axis, returns = axes_in(page)[-2:]
    scales = {
        "linear": np.asarray,
        "log": np.log10,
        # As matplotlib does, with linscale 0.5: a decade beyond the smallest positive value is 1 / 0.9 long.
        "symlog": lambda found: np.where(found > 0, 0.5 / 0.9 + np.log10(np.maximum(found, 1e-9) / values[1]), 0.0),
    }
    assert_labels_are_true(axis, [scales[scale]])
    assert_labels_are_true(returns)
    if len(values) < 5:
        assert axis.values == pytest.approx(sorted(values), rel=1e-5)
    found = rows(tmp_path, "settings")
    assert [(float(row["value"]), float(row["final_iqm"])) for row in found] == [
        (value, 1.0 + at) for at, value in enumerate(values)
    ]
    assert {row["setting"] for row in found} == {"rate"}


def test_lines_connect_groups_that_are_equal_in_all_other_settings(tmp_path: Path) -> None:
    grid = [(rate, epochs) for rate in (0.1, 0.2) for epochs in (1, 5)]
    folders = [
        write_seeds(tmp_path / f"{rate}_{epochs}", [[rate * epochs]], rate=rate, epochs=epochs, also=epochs)
        for rate, epochs in grid
    ]
    page = page_of(tmp_path, *folders)
    found = {(row["setting"], row["others"]) for row in rows(tmp_path, "settings")}
    # Two settings of equal values are one axis.
    assert found == {
        ("rate", "epochs=1, also=1"),
        ("rate", "epochs=5, also=5"),
        ("epochs also", "rate=0.1"),
        ("epochs also", "rate=0.2"),
    }
    assert "policy prey over epochs = also" in page


@pytest.mark.parametrize(
    "others",
    [
        [{"x": "a"}, {"x": "b"}],
        [{"x": 1}, {"x": None}],
        [{"x": True}, {"x": False}],
        [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}],
        [{"x": [1]}, {"x": [2]}],
        [{"x": float("inf")}, {"x": 1}],
    ],
)
def test_what_is_no_number_or_compares_nothing_has_no_axis(tmp_path: Path, others: list[dict[str, Any]]) -> None:
    page = page_of(tmp_path, *(write_seeds(tmp_path / str(at), [[1.0]], **one) for at, one in enumerate(others)))
    assert "Final returns over settings" not in page
    assert rows(tmp_path, "settings") == []


def test_labels_are_not_taken_for_coordinates() -> None:
    """Nor names for ids, addresses or colors."""
    series = ReturnSeries(np.array([1.0, 2.0]), np.array([0.25, 0.75]), np.array([1.0, 2.0]))
    title = 'd="1.2345" id="7" url(#8) #0a0c00 1.2345'
    svg = drawn_curves([CurveLine([series], look(0), title)], "name")
    assert title in svg.replace("&quot;", '"')
