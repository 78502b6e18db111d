from pathlib import Path
from typing import Literal

import pytest
from PIL import Image

from marlflow.base.errors import InvalidInput
from marlflow.observe.curves import curve, draw_learning_curves, updates_per_s
from marlflow.observe.sinks import JsonlSink, read_metrics
from tests.observe.records import record

BLUE, ORANGE, GREEN = (0, 114, 178), (213, 94, 0), (0, 158, 115)


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    for number in range(1, 21):
        sink.report(record(number))
    sink.close()
    return tmp_path / "metrics.jsonl"


def test_a_curve_holds_the_known_values_over_env_steps(metrics: Path) -> None:
    reports = read_metrics(metrics)[:3]
    assert curve(reports, "agent", "return_mean") == ([1000, 2000, 3000], [19.0, 18.0, 17.0])
    assert curve(reports, "agent", "eval_return_mean") == ([2000, 3000], [7.25, 7.25])
    assert curve(reports, "goal", "return_mean") == ([], [])
    assert curve(reports, "nobody", "return_mean") == ([], [])


def test_updates_per_s_are_of_the_time_between_reports(metrics: Path) -> None:
    assert updates_per_s(read_metrics(metrics)[:3], "agent") == ([2000, 3000], [100.0, 100.0])


@pytest.mark.parametrize("lower", ["updates_per_s", "staleness_mean"])
def test_the_figure_shows_each_policy_in_its_colour(
    metrics: Path, tmp_path: Path, lower: Literal["updates_per_s", "staleness_mean"]
) -> None:
    draw_learning_curves(metrics, tmp_path / "curves.png", lower=lower)
    with Image.open(tmp_path / "curves.png") as image:
        width, height = image.size
        colours = {colour: count for count, colour in image.convert("RGB").getcolors(maxcolors=2**24)}
        below = image.convert("RGB").crop((0, int(height * 0.62), width, int(height * 0.85)))
        in_lower_panel = {colour for _, colour in below.getcolors(maxcolors=2**24)}
    assert colours[BLUE] > 1000
    assert colours[ORANGE] > 1000
    assert GREEN in colours
    assert ORANGE in in_lower_panel


def test_a_run_with_one_report_can_be_drawn(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.report(record(1))
    sink.close()
    draw_learning_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", title="one report")
    with Image.open(tmp_path / "curves.png") as image:
        assert BLUE in {colour for _, colour in image.convert("RGB").getcolors(maxcolors=2**24)}


def test_a_run_without_reports_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl has no report yet"):
        draw_learning_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
