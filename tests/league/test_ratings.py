"""Ratings beside openskill's published examples and Plackett and Luce's model by hand."""

import math

import pytest

from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.league.ratings import MU, SIGMA, Rating, Ratings


def given(values: dict[str, tuple[float, float]], live: list[str] | None = None, beta: float = MU / 6) -> Ratings:
    ratings = Ratings(live or [], beta)
    ratings.load_state({member: [mu, sigma] for member, (mu, sigma) in values.items()})
    return ratings


def test_two_teams_are_rated_as_in_openskills_documentation() -> None:
    # The example of openskill.js's README, "rate([[a1, a2], [b1, b2]])".
    before = {"a1": (MU, SIGMA), "a2": (32.444, 5.123), "b1": (43.381, 2.421), "b2": (25.188, 6.211)}
    # It adds up the ratings of a team; half of the sum, with half of beta, leads to the same.
    ratings = given(before, beta=MU / 12)
    ratings.add([["a1", "a2"], ["b1", "b2"]], scores=[1.0, 0.0])
    after = {
        "a1": (28.669648436582808, 8.071520788025197),
        "a2": (33.83086971107981, 5.062772998705765),
        "b1": (43.071274808241974, 2.4166900452721256),
        "b2": (23.149503312339064, 6.1378606973362135),
    }
    for member, (mu, sigma) in after.items():
        assert (ratings[member].mu, ratings[member].sigma) == (pytest.approx(mu), pytest.approx(sigma))


def test_a_first_win_moves_both_ratings_by_this_much() -> None:
    ratings = Ratings()
    ratings.add([["a"], ["b"]], scores=[1.0, -1.0])
    # Weng and Lin, algorithm 4: sigma^2 / c * (1 - p), c^2 the sum of both sigma^2 + beta^2, and p one half.
    step = SIGMA**2 / math.sqrt(2 * (SIGMA**2 + (MU / 6) ** 2)) / 2
    assert (ratings["a"].mu, ratings["b"].mu) == (pytest.approx(MU + step), pytest.approx(MU - step))
    assert ratings["a"].sigma == pytest.approx(ratings["b"].sigma)
    assert ratings["a"].sigma < SIGMA


def test_a_draw_of_three_makes_equals_more_certain_and_moves_nobody() -> None:
    ratings = Ratings()
    ratings.add([["a"], ["b"], ["c"]], scores=[0.0, 0.0, 1e-12])
    assert [ratings[member].mu for member in "abc"] == pytest.approx([MU] * 3)
    assert len({round(ratings[member].sigma, 12) for member in "abc"}) == 1
    assert ratings["a"].sigma < SIGMA


def test_a_draw_of_three_brings_the_strong_down_and_the_weak_up() -> None:
    ratings = given({"strong": (30.0, 4.0), "middle": (25.0, 4.0), "weak": (20.0, 4.0)})
    ratings.add([["strong"], ["middle"], ["weak"]], scores=[1.0, 1.0, 1.0])
    assert ratings["strong"].mu < 30.0
    assert ratings["weak"].mu > 20.0
    total = sum(ratings[member].mu for member in ("strong", "middle", "weak"))
    assert total == pytest.approx(75.0)


@pytest.mark.parametrize("scores", [[3.0, 2.0, 1.0], [1e3, 0.0, -1e3]])
def test_only_the_order_of_scores_counts(scores: list[float]) -> None:
    ratings = Ratings()
    ratings.add([["a"], ["b"], ["c"]], scores)
    assert ratings["a"].mu > ratings["b"].mu > ratings["c"].mu
    assert ratings["a"].mu == pytest.approx(27.868876552746237)


def test_a_member_against_itself_and_on_unlike_sides_is_not_rated() -> None:
    ratings = Ratings()
    ratings.add([["a"], ["a"]], scores=[1.0, 0.0])
    ratings.add([["a", "b"], ["a", "c"]], scores=[1.0, 0.0])
    assert ratings.state() == {}


@pytest.mark.parametrize("others", [[0.0, 0.5], [0.9, 0.1, 0.6], [1.2, 0.0]])
def test_sides_that_one_member_plays_count_as_one_with_their_mean_score(others: list[float]) -> None:
    """As matches of leagues with many sides have them: one member alone against another on all other sides."""
    several, one = Ratings(), Ratings()
    several.add([["a"], *[["b"]] * len(others)], scores=[1.0, *others])
    one.add([["a"], ["b"]], scores=[1.0, 0.5])
    assert several.state() == one.state()
    assert several["a"].mu > MU > several["b"].mu


@pytest.mark.parametrize("sides", [[["a", "a"], ["b", "b"]], [["a", "a"], ["b"]], [["a"], ["b", "b", "b"]]])
def test_a_member_in_several_roles_of_its_side_is_rated_as_in_one(sides: list[list[str]]) -> None:
    several, one = Ratings(), Ratings()
    for scores in ([1.0, 0.0], [1.0, 0.0], [0.0, 1.0]):
        several.add(sides, scores)
        one.add([["a"], ["b"]], scores)
    assert several.state() == {member: pytest.approx(rating) for member, rating in one.state().items()}


def test_two_members_that_win_half_of_their_games_against_one_are_rated_as_it_is() -> None:
    ratings = Ratings()
    for game in range(400):
        ratings.add([["a", "b"], ["c"]], scores=[game % 2, 1 - game % 2])
    assert [ratings[member].mu for member in "abc"] == pytest.approx([MU] * 3, abs=1.0)
    assert ratings["a"].sigma == pytest.approx(ratings["b"].sigma)


def test_of_two_members_of_a_side_the_one_in_more_roles_moves_more() -> None:
    ratings = Ratings()
    ratings.add([["a", "a", "b"], ["c"]], scores=[1.0, 0.0])
    assert ratings["a"].mu - MU == pytest.approx(2 * (ratings["b"].mu - MU))


def test_live_members_become_less_certain_before_each_game() -> None:
    frozen, live = given({"a": (MU, 1.0)}), given({"a": (MU, 1.0)}, live=["a"])
    for ratings in (frozen, live):
        ratings.add([["a"], ["b"]], scores=[1.0, 0.0])
    assert live["a"].sigma > frozen["a"].sigma
    expected = given({"a": (MU, math.hypot(1.0, MU / 300))})
    expected.add([["a"], ["b"]], scores=[1.0, 0.0])
    assert live["a"] == expected["a"]


def test_a_snapshot_inherits_and_a_reset_forgets() -> None:
    ratings = given({"main": (31.0, 2.0)})
    ratings.inherit("main@1", "main")
    ratings.reset("main")
    ratings.reset("never played")
    assert (ratings["main@1"], ratings["main"]) == (Rating(31.0, 2.0), Rating(MU, SIGMA))


def test_state_through_bytes_restores_everything() -> None:
    ratings = Ratings(["a"])
    ratings.add([["a"], ["b"]], scores=[1.0, 0.0])
    restored = Ratings(["a"])
    restored.load_state(from_bytes(to_bytes(ratings.state())))
    for one in (ratings, restored):
        one.add([["b"], ["c"]], scores=[1.0, 1.0])
    assert restored.state() == ratings.state()
