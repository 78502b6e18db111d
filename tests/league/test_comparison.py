"""Intervals against scipy and in simulated runs; outcomes and results against naive counts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from marlflow.league.comparison import ComparedGame, comparison, mean_estimate, outcome, results_of, side_scores, wilson
from marlflow.league.sides import Role, Sides, default_sides, sides_of

PAIR = default_sides(["player_0", "player_1"])
THREE = default_sides(["a_0", "a_1", "a_2"])


@given(games=st.integers(1, 3_000), share=st.floats(0, 1))
def test_wilson_is_scipys(games: int, share: float) -> None:
    successes = round(share * games)
    found = wilson(successes, games)
    expected = stats.binomtest(successes, games).proportion_ci(0.95, "wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0


@pytest.mark.parametrize("share", [0.07, 0.3, 0.5, 0.82])
def test_wilson_covers_the_share_in_19_of_20_runs(share: float) -> None:
    wins = np.random.default_rng(0).binomial(400, share, size=1_000)
    intervals = [wilson(int(count), 400) for count in wins]
    covered = np.mean([interval.low <= share <= interval.high for interval in intervals])
    assert 0.93 <= covered <= 0.97


def test_the_interval_of_a_mean_covers_it_in_19_of_20_runs() -> None:
    draws = np.random.default_rng(1).normal(2.0, 3.0, size=(1_000, 12))
    intervals = [mean_estimate(draw.tolist()) for draw in draws]
    covered = np.mean([interval.low <= 2.0 <= interval.high for interval in intervals])
    assert 0.93 <= covered <= 0.97


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40))
def test_the_interval_of_a_mean_is_scipys(values: list[float]) -> None:
    found, error = mean_estimate(values), stats.sem(values)
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    half = 0.0 if error == 0.0 else stats.t.ppf(0.975, len(values) - 1) * error
    assert (found.high - found.value, found.value - found.low) == pytest.approx((half, half), abs=1e-7)


TEAMS, _ = sides_of({"red": [["r_0", "r_1"], ["r_2"]], "blue": [["b_0"]]}, ["r_0", "r_1", "r_2", "b_0"])


def test_the_score_of_a_side_is_the_mean_of_its_roles() -> None:
    returns = {"r_0": 1.0, "r_1": 3.0, "r_2": 10.0}
    assert side_scores(TEAMS, returns) == (6.0, 0.0), "roles count equally; blue never appeared"


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 0.5 + 1e-12, 2.0]), min_size=2, max_size=5), st.data())
def test_outcomes_against_a_naive_count(scores: list[float], data: st.DataObject) -> None:
    side = data.draw(st.integers(0, len(scores) - 1))
    others = [score for other, score in enumerate(scores) if other != side]
    expected = "win"
    for score in others:
        if score > scores[side] + 1e-9:
            expected = "loss"
        elif abs(score - scores[side]) <= 1e-9 and expected == "win":
            expected = "draw"
    assert outcome(scores, side) == expected


def game(sides: Sides, side: int, scores: list[float], member: str = "main") -> ComparedGame:
    agents = [role.agents[0] for role in sides.roles]
    seating = {agent: member if index == side else "other" for index, agent in enumerate(agents)}
    return ComparedGame(member, "other", side, 7, seating, dict(zip(agents, scores, strict=True)), 5)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=3, max_size=3)),
        min_size=1,
        max_size=30,
    )
)
def test_results_against_a_naive_count(drawn: list[tuple[int, list[float]]]) -> None:
    games = [game(THREE, side, scores) for side, scores in drawn]
    found = comparison(THREE, "main", "other", games, asked=len(games) + 2)
    assert found.results is not None
    assert found.lost == 2
    for index, name in enumerate(THREE.names):
        of_side = [scores for side, scores in drawn if side == index]
        if not of_side:
            assert name not in found.by_side
            continue
        wins = sum(all(scores[index] > s for i, s in enumerate(scores) if i != index) for scores in of_side)
        assert found.by_side[name].win.value * len(of_side) == pytest.approx(wins)
        assert found.by_side[name].score.value == pytest.approx(math.fsum(s[index] for s in of_side) / len(of_side))
    results = found.results
    assert results.win.value + results.draw.value + results.loss.value == pytest.approx(1.0)
    assert sum(one.games for one in found.by_side.values()) == results.games == len(games)


def test_returns_of_a_side_are_per_agent_or_summed_over_the_agents_that_took_part() -> None:
    """Two roles on a side, one of them with two agents, of which one appears in one game only."""
    roles = (Role("ends", 0, ("a", "b")), Role("middle", 0, ("c",)), Role("rival", 1, ("z",)))
    sides = Sides(("team", "rival"), roles)
    seating = {"a": "main", "b": "main", "c": "main", "z": "other"}
    returns = [{"a": 1.0, "b": 2.0, "c": 4.0, "z": 9.0}, {"a": 3.0, "c": 5.0, "z": -9.0}]
    found = results_of(sides, [ComparedGame("main", "other", 0, 7, seating, one, 5) for one in returns])
    assert found is not None
    assert found.returns("sum").mean.value == pytest.approx((7.0 + 8.0) / 2)
    assert found.returns("sum").median == pytest.approx(7.5)
    assert found.returns("mean").mean.value == pytest.approx(((1.5 + 4.0) / 2 + (1.5 + 5.0) / 2) / 2)


def test_no_game_has_no_results() -> None:
    assert results_of(PAIR, []) is None
    assert comparison(PAIR, "a", "b", [], asked=3).lost == 3
