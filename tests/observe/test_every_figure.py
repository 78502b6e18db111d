"""Every figure that is drawn: what its ticks are labeled is where they are, whatever the values are."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import marlflow
from benchmarks.gallery.cases import PAGES
from marlflow.league import figures as league_figures
from marlflow.league.payoffs import Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.standings import standings
from marlflow.observe import figure
from marlflow.observe.figure import tick_labels
from tests.league.population import PAIR, add_games, members_of
from tests.observe.axes import Axis, as_svg, assert_labels_are_true, axes_in, value_of
from tests.observe.records import record, write

IMAGES = PAGES.parent / "images"
SCALES = [1e-7, 1e-3, 0.25, 1.0, 75.0, 1e5, 1e9]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would be written as PNG."""
    kept: list[Figure] = []
    for module in (figure, league_figures):
        monkeypatch.setattr(module, "save_figure", lambda figure, out_png: kept.append(figure))
    return kept


def learning_curves(folder: Path, scale: float) -> None:
    reports = [record(number) for number in range(1, 9)]
    for number, report in enumerate(reports):
        for policy in report["policies"].values():
            policy |= {"return_mean": scale * (1 + number), "return_std": 0.0}
            policy |= {"eval_return_mean": scale * number, "eval_return_std": 0.1 * scale}
    figure.draw_learning_curves(write(folder / "metrics.jsonl", *reports), folder / "curves.png")


def ratings(folder: Path, scale: float) -> None:
    members, payoffs, rated = members_of({"main": 5, "other": 0}), Payoffs(PAIR), Ratings(["main", "other"])
    rated.load_state({name: [scale * (1 + place), 0.2 * scale] for place, name in enumerate(members.names)})
    for name in members.snapshots:
        add_games(payoffs, name, "other", wins=1, losses=1)
    shown = standings(members, payoffs, rated)
    league_figures.draw_ratings(folder / "ratings.png", shown, members, round(1e4 * (1 + scale)), "a league")


def nash_conv(folder: Path, scale: float) -> None:
    points = [(1000 * number, scale / number) for number in range(1, 6)]
    league_figures.draw_nash_conv(folder / "nash_conv.png", points, "a league")


def payoff(folder: Path, scale: float) -> None:
    members, payoffs = members_of({"main": 3, "other": 2}), Payoffs(PAIR)
    add_games(payoffs, "main@1", "other@1", wins=3, losses=1)
    league_figures.draw_payoffs(folder / "payoff.png", standings(members, payoffs, Ratings()), members, payoffs, "a")


DRAWN: list[Callable[[Path, float], None]] = [learning_curves, ratings, nash_conv, payoff]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("draw", DRAWN)
def test_labels_of_a_figure_are_where_their_values_are(
    drawn: list[Figure], tmp_path: Path, draw: Callable[[Path, float], None], scale: float
) -> None:
    draw(tmp_path, scale)
    (figure,) = drawn
    found = axes_in(as_svg(figure))
    apart = [axis.get_offset_text().get_text() for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    assert not any(apart), "a factor or a sum at the end of an axis is easily overlooked"
    assert any(is_numeric(axis) for axis in found)
    for axis in found:
        if is_numeric(axis):
            assert_labels_are_true(axis)
        else:
            assert len(set(axis.labels)) == len(axis.labels), "each name is there once"
            assert np.diff(axis.places) == pytest.approx(axis.places[1] - axis.places[0])


def is_numeric(axis: Axis) -> bool:
    try:
        return bool(axis.values)
    except ValueError:
        return False


COMMITTED = sorted(PAGES.glob("*/*.svg"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name + "/" + path.stem)
def test_labels_of_a_figure_of_the_gallery_are_where_their_values_are(path: Path) -> None:
    found = axes_in(path.read_text(encoding="utf-8"))
    assert len(found) == 2
    for axis in found:
        assert_labels_are_true(axis)


def test_every_module_that_draws_is_tested_here_or_with_the_report() -> None:
    """A new figure gets a test. Pictures of environments are their packages' own."""
    root = Path(marlflow.__file__).parent
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if draws(path)}
    found -= {"env/functional/jaxmarl_pictures.py"}
    assert found == {"html_report/charts.py", "league/figures.py", "observe/figure.py"}


def draws(path: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
    return bool(names & {"subplots", "add_subplot", "add_axes"})


VALUES: dict[str, tuple[list[float], list[str]]] = {
    "nothing": ([], []),
    "zero": ([0.0], ["0"]),
    "sums of floats": ([0.1, 0.2, 0.30000000000000004], ["0.1", "0.2", "0.3"]),
    "negative": ([-0.5, 0.0, 0.5], ["−0.5", "0.0", "0.5"]),
    "no minus zero": ([-0.0, 1.0], ["0", "1"]),
    "suffixes": ([0.0, 2500.0, 5000.0, 1e4], ["0", "2.5k", "5k", "10k"]),
    "far from zero": ([100_000.1, 100_000.2], ["100,000.1", "100,000.2"]),
    "powers": ([1e-7, 1e-5, 1e-3], ["1e−7", "1e−5", "1e−3"]),
    "huge": ([1e18, 2e18], ["1e18", "2e18"]),
}


@pytest.mark.parametrize(("values", "labels"), VALUES.values(), ids=VALUES)
def test_a_label_is_as_short_as_the_distance_of_ticks_allows(values: list[float], labels: list[str]) -> None:
    assert tick_labels(values) == labels
    assert [value_of(label) for label in labels] == pytest.approx(values)


ACTING = "matches with sampled actions, greedy ones of value-based policies"


@pytest.mark.parametrize("draw", [ratings, payoff])
def test_a_figure_of_a_league_says_how_members_acted(
    drawn: list[Figure], tmp_path: Path, draw: Callable[[Path, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("draw_ratings", "draw_payoffs"):
        monkeypatch.setattr(league_figures, name, partial(getattr(league_figures, name), acting=ACTING))
    draw(tmp_path, 1.0)
    (figure,) = drawn
    assert ACTING in figure.axes[0].get_title("left").replace("\n", " ")


def test_learning_curves_say_how_policies_acted(drawn: list[Figure], tmp_path: Path) -> None:
    learning_curves(tmp_path, 1.0)
    assert "exploration included; dots: evaluation (greedy)" in drawn[0].axes[0].get_title("left")
