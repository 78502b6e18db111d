"""Each branch of AlphaStar's matchmaking, snapshots and resets, in cases with literal probabilities."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

import marlflow as mf
from marlflow.league.alphastar import AlphaStar, AlphaStarRole, without_monotonic_suffix
from marlflow.league.modes import LeagueView
from marlflow.league.sides import default_sides
from tests.league.population import add_games, agree, frequencies, matchmaker_of, members_of, view_of

ROLES: dict[str, AlphaStarRole] = {"main": "main", "finder": "main_exploiter", "roamer": "league_exploiter"}
Chances = Mapping[tuple[str, str], float]


def seen(main: int = 0, finder: int = 0, roamer: int = 0, chances: Chances | None = None, **others: int) -> LeagueView:
    return view_of(members_of({"main": main, "finder": finder, "roamer": roamer, **others}), chances)


def dealt(view: LeagueView, policy: str, **settings: float) -> Counter[object]:
    mode = AlphaStar(ROLES, **settings)  # type: ignore[arg-type]
    return frequencies(lambda generator: mode.rival(view, policy, 1, generator))


def verified(view: LeagueView) -> Counter[object]:
    """The rivals of a main that only verifies, or plays itself if there is no member to verify against."""
    return dealt(view, "main", pfsp=0.0, verify=1.0)


def test_it_is_a_mode_with_snapshots_of_its_own() -> None:
    assert AlphaStar(ROLES).has_snapshot_rules
    assert [AlphaStar(ROLES).role_of(policy) for policy in ("finder", "unnamed")] == ["main_exploiter", "main"]


@pytest.mark.parametrize(
    ("chances", "kept"),
    [
        ([], 0),
        ([0.2], 0),
        ([0.9, 0.5], 0),
        ([0.5, 0.5], 0),
        ([0.5, 0.9], 2),
        ([0.5, 0.9, 0.6], 2),
        ([0.9, 0.5, 0.7, 0.7, 0.1], 3),
        ([0.1, 0.2, 0.3], 3),
    ],
)
def test_a_monotonic_suffix_is_left_out(chances: list[float], kept: int) -> None:
    assert without_monotonic_suffix(np.array(chances)) == kept


def test_a_main_plays_half_of_its_games_against_all_snapshots_by_difficulty() -> None:
    view = seen(main=1, finder=1, roamer=1, chances={("main", "finder@1"): 0.0, ("main", "roamer@1"): 1.0})
    # Hard: (1 - x)^2 of 0.5, 0 and 1. Verification: the finder's snapshot is seldom beaten. The rest is self-play.
    expected = {"main": 0.35, "main@1": 0.5 * 0.2, "finder@1": 0.5 * 0.8 + 0.15}
    assert agree(dealt(view, "main"), expected)


def test_a_main_verifies_itself_against_exploiters_that_often_win() -> None:
    view = seen(main=3, finder=2, chances={("main", "finder@1"): 0.2, ("main", "finder@2"): 0.6})
    assert agree(verified(view), {"finder@1": 0.8, "finder@2": 0.2})


def test_exploiters_that_seldom_win_need_no_verification() -> None:
    view = seen(finder=1, roamer=1, chances={("main", "finder@1"): 0.3, ("main", "roamer@1"): 0.0})
    assert verified(view) == {"main": 4000}


def test_a_main_verifies_itself_against_what_it_has_forgotten() -> None:
    chances = {("main", f"main@{number}"): chance for number, chance in enumerate((0.6, 0.8, 0.5), start=1)}
    # The last is as hard as the newest should be; of the first two 0.6 is below 0.7.
    assert agree(verified(seen(main=3, chances=chances)), {"main@1": 0.8, "main@2": 0.2})


@pytest.mark.parametrize("chances", [(0.7, 0.8, 0.5), (0.9, 0.6, 0.2), ()])
def test_a_main_that_has_forgotten_nothing_plays_itself(chances: tuple[float, ...]) -> None:
    table = {("main", f"main@{number}"): chance for number, chance in enumerate(chances, start=1)}
    assert verified(seen(main=len(chances), chances=table)) == {"main": 4000}


def test_self_play_is_against_any_main_that_is_not_too_strong() -> None:
    view = seen(main=2, other=2, chances={("main", "other"): 0.31})
    assert agree(dealt(view, "main", pfsp=0.0, verify=0.0), {"main": 0.5, "other": 0.5})


def test_self_play_is_against_the_past_of_a_main_that_is_too_strong() -> None:
    chances = {("main", "other"): 0.3, ("main", "other@1"): 1.0, ("main", "other@2"): 0.5, ("main", "other@3"): 0.9}
    view = seen(main=2, other=3, chances=chances)
    # Variance: x (1 - x) of 1, 0.5 and 0.9.
    expected = {"main": 0.5, "other@2": 0.5 * 25 / 34, "other@3": 0.5 * 9 / 34}
    assert agree(dealt(view, "main", pfsp=0.0, verify=0.0), expected)
    alone = seen(main=2, other=0, chances={("main", "other"): 0.0})
    assert agree(dealt(alone, "main", pfsp=0.0, verify=0.0), {"main": 0.5, "other": 0.5})


def test_a_main_without_any_past_plays_itself() -> None:
    assert set(dealt(seen(), "main", pfsp=0.0)) == {"main"}
    # Where the past is due, the league chooses.
    assert agree(dealt(seen(), "main"), {None: 0.5, "main": 0.5})


def test_a_main_exploiter_plays_the_main_and_its_past() -> None:
    chances = {("finder", "main"): 0.2, ("finder", "main@1"): 0.5, ("finder", "main@2"): 0.9}
    view = seen(main=2, finder=2, roamer=2, chances=chances)
    assert agree(dealt(view, "finder"), {"main": 0.5, "main@1": 0.5 * 25 / 34, "main@2": 0.5 * 9 / 34})


def test_a_main_exploiter_that_loses_plays_the_past_only() -> None:
    view = seen(main=2, finder=1, chances={("finder", "main"): 0.19})
    assert agree(dealt(view, "finder"), {"main@1": 0.5, "main@2": 0.5})


def test_a_main_exploiter_as_in_the_pseudocode_has_no_coin() -> None:
    view = seen(main=2, chances={("finder", "main"): 0.11})
    assert dealt(view, "finder", exploiter_past=0.0, exploiter_weak=0.1) == {"main": 4000}


def test_a_main_exploiter_plays_a_main_without_past() -> None:
    assert dealt(seen(chances={("finder", "main"): 0.0}), "finder") == {"main": 4000}


def test_a_league_exploiter_plays_all_snapshots_by_capped_weights() -> None:
    chances = {("roamer", "main@1"): 0.1, ("roamer", "finder@1"): 0.5, ("roamer", "roamer@1"): 0.75}
    view = seen(main=1, finder=1, roamer=1, chances=chances)
    assert agree(dealt(view, "roamer"), {"main@1": 0.4, "finder@1": 0.4, "roamer@1": 0.2})
    assert dealt(seen(), "roamer") == {None: 4000}


def test_rivals_can_play_the_role() -> None:
    tag = default_sides(["adversary_0", "agent_0"])
    fits = {"main": ["agent_0"], "finder": ["adversary_0"], "hunter": ["adversary_0"]}
    view = view_of(members_of({"main": 2, "finder": 2, "hunter": 2}, tag, fits))
    mode = AlphaStar(ROLES)
    for policy, role, own in (("main", 0, "adversary_0"), ("finder", 1, "agent_0")):
        rivals = frequencies(lambda generator, who=policy, at=role: mode.rival(view, who, at, generator))
        assert {view.members.policy_of(rival) for rival in rivals} <= {
            name for name, agents in fits.items() if own in agents
        }
    nobody = view_of(
        members_of({"finder": 0, "hunter": 0}, tag, {"finder": ["adversary_0"], "hunter": ["adversary_0"]})
    )
    assert mode.rival(nobody, "hunter", 1, np.random.default_rng(0)) is None


@pytest.mark.parametrize(("policy", "limit"), [("main", 1000), ("finder", 2000), ("roamer", 1000)])
def test_snapshots_are_due_after_phases(policy: str, limit: int) -> None:
    mode, view = AlphaStar(ROLES, phase_agent_steps=1000), seen(main=1, other=1)
    due = [mode.snapshot_due(view, policy, agent_steps) for agent_steps in (0, limit - 1, limit)]
    assert due == [False, False, True]


def test_a_main_exploiter_has_a_snapshot_when_it_beats_all_mains() -> None:
    mode, view = AlphaStar(ROLES), seen(main=1, other=1)
    add_games(view.payoffs, "finder", "main", wins=8, losses=2)
    add_games(view.payoffs, "finder", "other", wins=20, losses=0)
    assert not mode.snapshot_due(view, "finder", 5), "10 games are too few"
    add_games(view.payoffs, "finder", "main", wins=8, losses=2)
    assert mode.snapshot_due(view, "finder", 5), "nobody asks for wins against snapshots"
    add_games(view.payoffs, "finder", "other", wins=0, losses=9)
    assert not mode.snapshot_due(view, "finder", 5), "20 of 29 games are no more than 0.7"


def test_a_league_exploiter_has_a_snapshot_when_it_beats_all_snapshots() -> None:
    mode, view = AlphaStar(ROLES), seen(main=1, finder=1)
    add_games(view.payoffs, "roamer", "main@1", wins=20, losses=0)
    assert not mode.snapshot_due(view, "roamer", 5)
    add_games(view.payoffs, "roamer", "finder@1", wins=20, losses=0)
    assert mode.snapshot_due(view, "roamer", 5)
    assert not mode.snapshot_due(seen(), "roamer", 5), "there is nobody to beat"


def test_wins_give_a_main_no_snapshot() -> None:
    view = seen(main=1)
    add_games(view.payoffs, "main", "main@1", wins=100, losses=0)
    assert not AlphaStar(ROLES).snapshot_due(view, "main", 99_999)


def test_exploiters_are_reset_after_their_snapshots() -> None:
    mode = AlphaStar(ROLES, reset_to="main@1")

    def resets(policy: str) -> Counter[object]:
        return frequencies(lambda generator: mode.reset_after_snapshot(policy, generator))

    assert resets("main") == {None: 4000}
    assert resets("finder") == {mf.Reset("finder", "main@1"): 4000}
    assert agree(resets("roamer"), {mf.Reset("roamer", "main@1"): 0.25, None: 0.75})


def test_the_league_takes_the_snapshots_that_it_asks_for() -> None:
    matchmaker = matchmaker_of(members_of({"main": 1, "finder": 0}), AlphaStar(ROLES, phase_agent_steps=100))
    frozen = [
        dict(matchmaker.change_population({"main": step, "finder": step}, {"main": step, "finder": step}).freeze)
        for step in (0, 99, 100, 199, 200)
    ]
    assert frozen == [{}, {}, {"main@2": "main"}, {}, {"main@3": "main", "finder@1": "finder"}]
    dealt_by_it = matchmaker(mf.EpisodeId(0, 0), ["player_0", "player_1"], np.random.default_rng(1))
    assert set(dealt_by_it) == {"player_0", "player_1"}
