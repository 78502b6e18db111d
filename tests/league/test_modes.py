"""The rivals that modes deal: literal weights, and frequencies compared with the modes' distributions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import marlflow as mf
from marlflow.league.modes import pfsp_weights
from marlflow.league.sides import default_sides
from tests.league.population import add_games, agree, frequencies, members_of, view_of

MODES = [mf.NaiveSelfPlay(), mf.LatestPast(), mf.DeltaUniform(), mf.Fictitious(), mf.PFSP()]


def past(*numbers: int) -> list[str]:
    return [f"main@{number}" for number in numbers]


def dealt(mode: mf.LeagueMode, view: mf.LeagueView, role: int = 1, policy: str = "main") -> object:
    return frequencies(lambda generator: mode.rival(view, policy, role, generator))


@pytest.mark.parametrize(
    ("chances", "weighting", "weights"),
    [
        ([1.0, 0.5, 0.0], "hard", [0.0, 0.2, 0.8]),
        ([1.0, 0.5, 0.0], "variance", [0.0, 1.0, 0.0]),
        ([1.0, 0.5, 0.0], "linear", [0.0, 1 / 3, 2 / 3]),
        ([1.0, 0.5, 0.0], "capped", [0.0, 0.5, 0.5]),
        ([0.75, 0.25], "hard", [0.1, 0.9]),
        ([0.75, 0.25], "variance", [0.5, 0.5]),
        ([0.75, 0.25], "linear", [0.25, 0.75]),
        ([0.75, 0.25], "capped", [1 / 3, 2 / 3]),
        ([1.0, 1.0], "hard", [0.5, 0.5]),
        ([1.0, 1.0], "variance", [0.5, 0.5]),
        ([1.0, 1.0], "linear", [0.5, 0.5]),
        ([1.0, 1.0], "capped", [0.5, 0.5]),
        ([0.0, 0.0, 0.0], "hard", [1 / 3] * 3),
        ([0.0, 0.0, 0.0], "variance", [1 / 3] * 3),
        ([0.0, 0.0, 0.0], "linear", [1 / 3] * 3),
        ([0.0, 0.0, 0.0], "capped", [1 / 3] * 3),
        ([0.0, 1.0], "hard", [1.0, 0.0]),
        ([0.0, 1.0], "variance", [0.5, 0.5]),
        ([0.0, 1.0], "linear", [1.0, 0.0]),
        ([0.0, 1.0], "capped", [1.0, 0.0]),
        *[([chance], weighting, [1.0]) for chance in (0.0, 0.3, 1.0) for weighting in ("hard", "variance", "linear")],
        *[([chance], "capped", [1.0]) for chance in (0.0, 0.3, 1.0)],
    ],
)
def test_pfsp_weights_are_these(chances: list[float], weighting: str, weights: list[float]) -> None:
    assert pfsp_weights(np.array(chances), weighting) == pytest.approx(weights)  # type: ignore[arg-type]


def test_the_power_makes_hard_rivals_more_likely() -> None:
    assert pfsp_weights(np.array([0.5, 0.0]), "hard", power=1.0) == pytest.approx([1 / 3, 2 / 3])
    assert pfsp_weights(np.array([0.5, 0.0]), "hard", power=3.0) == pytest.approx([1 / 9, 8 / 9])


@given(
    hnp.arrays(np.float64, st.integers(1, 9), elements=st.floats(0, 1)),
    st.sampled_from(["hard", "variance", "linear", "capped"]),
    st.floats(0.5, 5),
)
def test_pfsp_weights_are_a_distribution(chances: np.ndarray, weighting: str, power: float) -> None:
    weights = pfsp_weights(chances, weighting, power)  # type: ignore[arg-type]
    assert weights.sum() == pytest.approx(1.0)
    assert weights.min() >= 0.0


def test_self_play_is_against_oneself() -> None:
    view = view_of(members_of({"main": 3, "other": 2}))
    assert dealt(mf.NaiveSelfPlay(), view) == {"main": 4000}


def test_self_play_is_against_the_live_policy_of_the_other_role() -> None:
    tag = default_sides(["adversary_0", "agent_0"])
    fits = {"hunter": ["adversary_0"], "prey": ["agent_0"], "runner": ["agent_0"]}
    view = view_of(members_of({"hunter": 1, "prey": 1, "runner": 0}, tag, fits))
    assert agree(dealt(mf.NaiveSelfPlay(), view, policy="hunter"), {"prey": 0.5, "runner": 0.5})
    assert dealt(mf.NaiveSelfPlay(), view, role=0, policy="prey") == {"hunter": 4000}


def test_latest_past_is_the_live_policy_or_one_of_the_window() -> None:
    view = view_of(members_of({"main": 5}))
    expected = {"main": 0.4, **dict.fromkeys(past(3, 4, 5), 0.2)}
    assert agree(dealt(mf.LatestPast(live=0.4, window=3), view), expected)
    few = view_of(members_of({"main": 2}))
    assert agree(dealt(mf.LatestPast(live=0.5, window=10), few), {"main": 0.5, **dict.fromkeys(past(1, 2), 0.25)})


@pytest.mark.parametrize(
    ("delta", "count", "first"), [(0.5, 10, 5), (0.5, 5, 3), (0.0, 4, 1), (1.0, 4, 4), (0.5, 1, 1), (0.9, 10, 9)]
)
def test_delta_uniform_is_over_the_newest(delta: float, count: int, first: int) -> None:
    view = view_of(members_of({"main": count}))
    newest = past(*range(first, count + 1))
    assert agree(dealt(mf.DeltaUniform(delta), view), dict.fromkeys(newest, 1 / len(newest)))


def test_fictitious_is_over_all_snapshots_of_all_policies() -> None:
    view = view_of(members_of({"main": 3, "other": 2}))
    everybody = [*past(1, 2, 3), "other@1", "other@2"]
    assert agree(dealt(mf.Fictitious(), view), dict.fromkeys(everybody, 0.2))


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [("hard", (0, 1, 4)), ("variance", (0, 1, 0)), ("linear", (0, 1, 2)), ("capped", (0, 1, 1))],
)
def test_pfsp_is_by_the_probability_to_win(weighting: str, weights: tuple[int, ...]) -> None:
    chances = {("main", "main@1"): 1.0, ("main", "main@2"): 0.5, ("main", "main@3"): 0.0}
    view = view_of(members_of({"main": 3}), chances)
    expected = {name: 0.7 * weight / sum(weights) for name, weight in zip(past(1, 2, 3), weights, strict=True)}
    assert agree(dealt(mf.PFSP(past=0.7, weighting=weighting), view), {"main": 0.3, **expected})  # type: ignore[arg-type]


def test_pfsp_without_games_is_uniform() -> None:
    view = view_of(members_of({"main": 4}))
    assert agree(dealt(mf.PFSP(past=1.0), view), dict.fromkeys(past(1, 2, 3, 4), 0.25))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
def test_without_snapshots_it_is_the_live_policy_or_left_to_the_league(mode: mf.LeagueMode) -> None:
    view = view_of(members_of({"main": 0}))
    (rival,) = dealt(mode, view)
    assert rival in ("main", None)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
def test_a_rival_can_play_its_role(mode: mf.LeagueMode) -> None:
    tag = default_sides(["adversary_0", "agent_0"])
    fits = {"hunter": ["adversary_0"], "prey": ["agent_0"]}
    view = view_of(members_of({"hunter": 3, "prey": 3}, tag, fits))
    rivals = dealt(mode, view, role=1, policy="hunter")
    assert all(view.members.plays(rival, 1) for rival in rivals)
    assert not math.isnan(sum(rivals.values()))


def test_disagreement_is_noticed() -> None:
    view = view_of(members_of({"main": 3}))
    assert not agree(dealt(mf.Fictitious(), view), dict(zip(past(1, 2, 3), (0.3, 0.35, 0.35), strict=True)))
    assert not agree(dealt(mf.Fictitious(), view), dict.fromkeys(past(1, 2), 0.5))


def test_a_view_follows_the_payoffs() -> None:
    view = view_of(members_of({"main": 2}))
    saved = view.payoffs.state()

    def chances() -> list[float]:
        return view.chances("main", past(1, 2)).tolist()

    assert chances() == [0.5, 0.5]
    add_games(view.payoffs, "main", "main@1", wins=3, losses=1)
    assert chances() == [0.75, 0.5]
    assert view.chances("main@1", past(2)).tolist() == [0.5]
    add_games(view.payoffs, "main@2", "main", wins=1, losses=0)
    assert chances() == [0.75, 0.0]
    view.payoffs.reset("main", 0)
    assert chances() == [0.5, 0.5]
    add_games(view.payoffs, "main", "main@1", wins=1, losses=0)
    assert chances() == [1.0, 0.5]
    view.payoffs.load_state(saved)
    assert chances() == [0.5, 0.5]


def test_a_mode_can_do_what_it_overrides() -> None:
    class Whole(mf.LeagueMode):
        def profile(self, view: mf.LeagueView, generator: np.random.Generator) -> tuple[str, ...]:
            return ("main", "main")

        def snapshots_due(self, view: mf.LeagueView, agent_steps: object) -> tuple[str, ...]:
            return ("main",)

    assert (Whole().seats_all_roles, Whole().has_snapshot_rules, Whole().has_meta_game) == (True, True, False)
    assert not any((mf.PFSP().seats_all_roles, mf.PFSP().has_snapshot_rules, mf.PFSP().has_meta_game))
