import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from marlflow.base.errors import InvalidInput
from marlflow.observe import figure
from marlflow.observe.figure import curve, draw_learning_curves, evaluations, updates_per_s
from marlflow.observe.sinks import read_metrics
from tests.observe.records import evaluation, learner, record, write

BLUE, ORANGE, GREEN = (0, 114, 178), (213, 94, 0), (0, 158, 115)


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return write(tmp_path / "metrics.jsonl", *map(record, range(1, 21)))


def test_a_curve_holds_the_known_values_over_env_steps(metrics: Path) -> None:
    reports = read_metrics(metrics)[:3]
    assert curve(reports, "agent", "return_mean") == ([1000, 2000, 3000], [19.0, 18.0, 17.0])
    assert curve(reports, "agent", "eval_return_mean") == ([2000], [7.25])
    assert curve(reports, "goal", "return_mean") == ([], [])
    assert curve(reports, "nobody", "return_mean") == ([], [])


def test_evaluations_are_where_they_were_made_and_none_is_there_twice(metrics: Path) -> None:
    reports = read_metrics(metrics)[:5]
    at_the_end = {**reports[3]["policies"]["agent"], "eval_return_mean": 9.0, "eval_episodes": 100}
    reports.append({**reports[4], "policies": {"agent": at_the_end}})
    assert evaluations(reports, "agent") == [(1500, 7.25, 1.5), (3500, 9.0, 1.5)]
    assert evaluations(reports, "goal") == evaluations(reports, "nobody") == []


def test_a_last_evaluation_is_drawn_where_the_last_report_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reports of the same env steps, of which the first has an evaluation, as a run may end."""
    last = record(2)
    for metrics in last["policies"].values():
        metrics.update(evaluation(0))
    write(tmp_path / "metrics.jsonl", record(1), record(2), last)
    drawn: list[list[float]] = []
    plot = Axes.plot

    def see(axes: Axes, steps: Any, values: Any, **style: Any) -> Any:
        drawn.append(list(steps))
        return plot(axes, steps, values, **style)

    monkeypatch.setattr(Axes, "plot", see)
    draw_learning_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    assert drawn.count([1500]) == 2, "once for each policy that was evaluated"


def test_teams_of_several_policies_have_a_panel_of_their_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = [record(number) for number in range(1, 5)]
    for number, report in enumerate(reports, 1):
        report["learners"] = {**report["learners"], "pair": learner(number, 10 * number, {})}
    write(tmp_path / "metrics.jsonl", *reports)
    drawn: list[tuple[Axes, list[float], list[float]]] = []
    plot = Axes.plot

    def see(axes: Axes, steps: Any, values: Any, **style: Any) -> Any:
        drawn.append((axes, list(steps), list(values)))
        return plot(axes, steps, values, **style)

    monkeypatch.setattr(Axes, "plot", see)
    draw_learning_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    _, panel, _ = dict.fromkeys(axes for axes, _, _ in drawn)
    assert [(steps, values) for axes, steps, values in drawn if axes is panel] == [
        ([1000, 2000, 3000, 4000], [-5.0] * 4),
        ([1500, 3500], [26.0, 26.0]),
    ]
    (legend,) = panel.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["adversary", "agent", "goal", "pair"]


@pytest.mark.parametrize("names", [["_a$x$&b", "$}$", "é"], [f"agent_{number}" for number in range(162)]])
def test_the_legend_has_all_names_as_they_are_as_far_as_there_is_room(tmp_path: Path, names: list[str]) -> None:
    one = record(1)
    metrics = one["policies"]["agent"]
    write(tmp_path / "metrics.jsonl", {**one, "policies": dict.fromkeys(names, metrics), "learners": {}})
    figures: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        save = figure.save_figure
        patch.setattr(figure, "save_figure", lambda one, path: (figures.append(one), save(one, path)))
        draw_learning_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    (legend,) = figures[0].legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == (names if len(names) < 25 else [*names[:24], "and 138 more"])


def test_updates_per_s_are_of_the_time_between_reports(metrics: Path) -> None:
    assert updates_per_s(read_metrics(metrics)[:3], "agent") == ([2000, 3000], [100.0, 100.0])


@pytest.mark.parametrize("lower", ["updates_per_s", "staleness_mean"])
def test_the_figure_shows_each_policy_in_its_color(
    metrics: Path, tmp_path: Path, lower: Literal["updates_per_s", "staleness_mean"]
) -> None:
    draw_learning_curves(metrics, tmp_path / "curves.png", lower=lower)
    with Image.open(tmp_path / "curves.png") as image:
        width, height = image.size
        colors = {color: count for count, color in image.convert("RGB").getcolors(maxcolors=2**24)}
        below = image.convert("RGB").crop((0, int(height * 0.62), width, int(height * 0.85)))
        in_lower_panel = {color for _, color in below.getcolors(maxcolors=2**24)}
    assert colors[BLUE] > 1000
    assert colors[ORANGE] > 1000
    assert GREEN in colors
    assert ORANGE in in_lower_panel


def test_a_run_with_one_report_can_be_drawn(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", record(1))
    draw_learning_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", title="one report")
    with Image.open(tmp_path / "curves.png") as image:
        assert BLUE in {color for _, color in image.convert("RGB").getcolors(maxcolors=2**24)}


def test_a_run_without_reports_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl has no report yet"):
        draw_learning_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
