"""A league whose mode resets a live policy."""

import numpy as np

import marlflow as mf
from marlflow.league.alphastar import AlphaStarRole
from marlflow.league.payoffs import Game
from tests.league.population import matchmaker_of, members_of

ROLES: dict[str, AlphaStarRole] = {"main": "main", "finder": "main_exploiter", "roamer": "league_exploiter"}
LIVE = {"main": 1, "finder": 0, "roamer": 0}


def test_a_league_may_reset_whom_its_mode_may_reset() -> None:
    exploiting, plain = matchmaker_of(members_of(LIVE), mf.AlphaStar(ROLES)), matchmaker_of(members_of(LIVE))
    assert exploiting.reset_policies() == ["finder", "roamer"]
    assert plain.reset_policies() == []


def test_after_its_snapshot_an_exploiter_begins_again_and_what_it_did_is_set_aside() -> None:
    league = matchmaker_of(members_of(LIVE), mf.AlphaStar(ROLES, phase_agent_steps=100, reset_to="main@1"))
    for _ in range(3):
        league.payoffs.add(Game(("finder", "main"), (1.0, -1.0), 10))
        league.payoffs.add(Game(("main", "roamer"), (1.0, -1.0), 10))
        league.ratings.add([["finder"], ["main"]], [1.0, -1.0])
    rating = league.ratings["finder"]
    steps = {"main": 10, "finder": 200, "roamer": 10}
    change = league.change_population(dict.fromkeys(LIVE, 7), steps)
    assert change.freeze == {"finder@1": "finder"}
    assert league.resets() == [mf.Reset("finder", "main@1")]
    assert league.resets() == [], "each once"
    assert league.payoffs.games("finder", "main") == 0
    assert league.payoffs.games("main", "roamer") == 3
    assert sum(cell.games for cell in league.payoffs.past["finder:0"].values()) == 3
    assert league.members.incarnations == {"main": 0, "finder": 1, "roamer": 0}
    assert league.members.snapshots["finder@1"].incarnation == 0
    assert league.ratings["finder@1"] == rating != league.ratings["finder"]
    assert league.epoch == 2
    # Its next snapshot is due as long after the reset as the first was after the start.
    assert not league.change_population(dict.fromkeys(LIVE, 8), steps | {"finder": 399}).freeze
    assert league.change_population(dict.fromkeys(LIVE, 8), steps | {"finder": 400}).freeze == {"finder@2": "finder"}


def test_a_league_exploiter_is_reset_in_a_quarter_of_cases_whatever_was_asked_before() -> None:
    reset: list[bool] = []
    for seed in range(400):
        league = matchmaker_of(members_of(LIVE), mf.AlphaStar(ROLES, phase_agent_steps=100), seed=seed)
        league(mf.EpisodeId(0, seed), ["player_0", "player_1"], np.random.default_rng(seed))
        league.change_population(dict.fromkeys(LIVE, 7), {"main": 0, "finder": 0, "roamer": 100})
        reset.append(bool(league.resets()))
    assert abs(np.mean(reset) - 0.25) < 4 * (0.25 * 0.75 / 400) ** 0.5
