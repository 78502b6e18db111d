"""Figures: what a cell of the heatmap says, and that both can be drawn for leagues of any size and kind."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from marlflow.league.figures import MOST_SHOWN, _draw_cells, _win_rates, draw_payoffs, draw_ratings
from marlflow.league.members import Members
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.ratings import Rating, Ratings
from marlflow.league.sides import default_sides, sides_of
from marlflow.league.standings import standings
from marlflow.observe.figure import new_figure
from tests.league.population import PAIR, add_games, members_of

BLUE, ORANGE = (0, 114, 178), (213, 94, 0)


def colors(path: Path) -> dict[tuple[int, ...], int]:
    with Image.open(path) as image:
        found = image.convert("RGB").getcolors(maxcolors=2**24)
    return {color: count for count, color in found}


def drawn(members: Members, payoffs: Payoffs, folder: Path) -> Path:
    draw_payoffs(folder / "payoff.png", standings(members, payoffs, Ratings()), members, payoffs, "a run")
    return folder / "payoff.png"


def test_a_cell_is_what_the_row_won_on_side_1() -> None:
    payoffs = Payoffs(PAIR)
    add_games(payoffs, "a", "b", wins=3, losses=1)
    add_games(payoffs, "b", "a", wins=1, losses=0)
    payoffs.add(Game(("a", "b"), (0.0, 0.0), env_steps=1))
    payoffs.add(Game(("a", "a"), (1.0, -1.0), env_steps=1))
    rates, games = _win_rates(payoffs, ["a", "b"], ["b", "a"])
    np.testing.assert_array_equal(rates, [[3.5 / 5, np.nan], [np.nan, 1.0]])
    np.testing.assert_array_equal(games, [[5, 0], [0, 1]])


def test_roles_and_sides_beyond_two_are_pooled() -> None:
    sides, _ = sides_of(
        {"red": [["red_0"], ["red_1"]], "blue": [["blue"]], "green": [["green"]]}, ["red_0", "red_1", "blue", "green"]
    )
    payoffs = Payoffs(sides)
    # Red, with a on both roles, beats b twice; then a shares red with c, and loses to b once and wins once.
    payoffs.add(Game(("a", "a", "b", "b"), (1.0, 1.0, 0.0, 0.0), env_steps=1))
    payoffs.add(Game(("c", "a", "b", "b"), (1.0, 1.0, 2.0, 0.0), env_steps=1))
    rates, games = _win_rates(payoffs, ["a", "c"], ["b"])
    np.testing.assert_allclose(rates, [[5 / 6], [1 / 2]])
    np.testing.assert_array_equal(games, [[6], [2]])


def test_with_interchangeable_sides_a_row_has_the_games_on_any() -> None:
    payoffs = Payoffs(PAIR, symmetric=True)
    add_games(payoffs, "a", "b", wins=3, losses=1)
    add_games(payoffs, "b", "a", wins=1, losses=0)
    rates, games = _win_rates(payoffs, ["a", "b"], ["b", "a"])
    np.testing.assert_array_equal(rates, [[3 / 5, np.nan], [np.nan, 2 / 5]])
    np.testing.assert_array_equal(games, [[5, 0], [0, 5]])


def test_cells_with_few_games_are_hatched() -> None:
    axes = new_figure(4, 4, "").subplots()
    _draw_cells(axes, np.array([[0.5, 0.9], [np.nan, 0.1]]), np.array([[20, 19], [0, 1]]))
    (hatching,) = axes.collections
    cells = {tuple(np.round(stroke.mean(axis=0)).astype(int).tolist()) for stroke in hatching.get_segments()}
    assert {(1, 0), (1, 1)} == cells, "as (column, row)"
    assert [text.get_text() for text in axes.texts] == [".50", ".90", ".10"]


@pytest.mark.parametrize("count", [0, 1, pytest.param(MOST_SHOWN + 40, marks=pytest.mark.slow)])
def test_leagues_of_any_size_are_drawn_at_a_size_that_can_be_opened(count: int, tmp_path: Path) -> None:
    members = members_of({"main": count})
    payoffs = Payoffs(PAIR)
    if count:
        add_games(payoffs, "main", "main@1", wins=30, losses=1)
    with Image.open(drawn(members, payoffs, tmp_path)) as image:
        assert 500 < max(image.size) < 4000


def test_a_name_is_no_mathematics(tmp_path: Path) -> None:
    members = Members(PAIR, {"$\\frac$": ["player_0", "player_1"]}, live=["$\\frac$"])
    path = tmp_path / "payoff.png"
    shown = standings(members, Payoffs(PAIR), Ratings())
    draw_payoffs(path, shown, members, Payoffs(PAIR), "$\\frac$")
    assert path.exists()
    ratings = rated(members, {"$\\frac$": Rating(20, 1)})
    draw_ratings(path, standings(members, Payoffs(PAIR), ratings), members, 10, "$\\frac$")


def rated(members: Members, values: dict[str, Rating]) -> Ratings:
    ratings = Ratings(list(members.incarnations))
    ratings.load_state({name: [rating.mu, rating.sigma] for name, rating in values.items()})
    return ratings


@pytest.mark.parametrize("count", [5, 300])
def test_ratings_have_a_line_for_each_live_policy(count: int, tmp_path: Path) -> None:
    agents = {"adversary": ["adversary_0"], "agent": ["agent_0"]}
    members = Members(default_sides(["adversary_0", "agent_0"]), agents, live=list(agents))
    for step in range(count):
        members.add("adversary", step, step * 1000, step * 1000)
    values = {name: Rating(20 + place, 1) for place, name in enumerate(members.names)}
    payoffs = Payoffs(members.sides)
    for name in ("adversary", *members.snapshots):
        payoffs.add(Game((name, "agent"), (1.0, -1.0), env_steps=1))
    shown = standings(members, payoffs, rated(members, values))
    draw_ratings(tmp_path / "ratings.png", shown, members, 1000 * count, "a run")
    found = colors(tmp_path / "ratings.png")
    assert found[BLUE] > found[ORANGE] > 50


def test_members_that_never_learn_have_a_line_across(tmp_path: Path) -> None:
    members = members_of({"main": 0})
    payoffs = Payoffs(PAIR)
    payoffs.add(Game(("main", "random"), (1.0, -1.0), env_steps=1))
    shown = standings(members, payoffs, rated(members, {"random": Rating(20, 1)}))
    draw_ratings(tmp_path / "ratings.png", shown, members, 0, "a run")
    assert (136, 136, 136) in colors(tmp_path / "ratings.png")


def test_ratings_without_games_are_an_empty_figure(tmp_path: Path) -> None:
    members = members_of({"main": 2})
    draw_ratings(tmp_path / "ratings.png", standings(members, Payoffs(PAIR), Ratings()), members, 0, "a run")
    assert BLUE not in colors(tmp_path / "ratings.png")
