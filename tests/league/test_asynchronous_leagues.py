"""Leagues of workers that do not wait for each other: what is counted, what a reset leaves, and resumed runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from tests.driver.kept_runs import kept
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import Seen
from tests.league.runs import LEAGUES, MAIN, OFTEN, league_run
from tests.runtime.small_runs import SMALL, SMALL_DQN

HALF, WHOLE = 432, 864
STALE = mf.Policy(replace(MAIN.algorithm, max_staleness=20), SMALL)
EXPLOITERS = {"main": STALE, "main_exploiter": mf.Policy(SMALL_DQN, SMALL), "league_exploiter": STALE}


def asynchronous(league: mf.League, env_steps: int, policies: Any = None) -> mf.Experiment:
    rollouts = mf.Rollouts(num_workers=2, fragment_env_steps=12, pace="asynchronous")
    evaluation = mf.Evaluation(every_env_steps=300, episodes=2)
    return league_run(league, env_steps, policies=policies or {"main": STALE}, rollouts=rollouts, evaluation=evaluation)


def league_of(run_dir: Path) -> Any:
    return kept(run_dir)["driver"]["dealer"]["matchmaker"]


def assert_seats_are_balanced(run_dir: Path, seen: Seen) -> None:
    """Games are dealt to each seat equally often, to within one game; only unfinished games may differ."""
    dealer = kept(run_dir)["driver"]["dealer"]
    turns = [count for _, _, count in dealer["matchmaker"]["turns"]]
    assert len(turns) == 2
    assert abs(turns[0] - turns[1]) <= 1
    open_games = len(dealer["matchmaker"]["open"])
    assert sum(turns) == len(seen.episodes) + open_games
    # In games against itself it has both seats.
    apart = [e.matchup["player_0"] == "main" for e in seen.episodes if set(e.matchup.values()) != {"main"}]
    both = len(seen.episodes) - len(apart)
    assert abs(2 * sum(apart) - len(apart)) <= 1 + open_games + both


def test_games_count_as_they_were_played_in_the_order_of_their_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    metrics = mf.train(asynchronous(LEAGUES["pfsp"], WHOLE), tmp_path).metrics
    league = metrics["league"]
    assert league["games"] == len(seen.episodes) == metrics["episodes"] > 50
    assert (league["games_stale"], league["games_lost"]) == (0, 0)
    cells = league_of(tmp_path)["payoffs"]["cells"]
    played = Counter(tuple(episode.matchup.values()) for episode in seen.episodes)
    assert dict(zip(map(tuple, cells["profiles"]), cells["counts"][:, 0].tolist(), strict=True)) == played
    assert len(league_of(tmp_path)["members"]["snapshots"]) > 3
    assert_seats_are_balanced(tmp_path, seen)


def test_resumed_it_goes_on_as_it_would_have(tmp_path: Path) -> None:
    resumes_exactly(asynchronous(LEAGUES["latest_past"], WHOLE), tmp_path, HALF)


def test_after_a_reset_no_game_of_before_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    roles = {name: name for name in EXPLOITERS}
    mode = mf.AlphaStar(roles, phase_agent_steps=60, reset_probability=1.0)
    league = mf.League(mode, snapshots=replace(OFTEN, every_agent_steps=None))
    metrics = mf.train(asynchronous(league, WHOLE, EXPLOITERS), tmp_path).metrics["league"]
    assert metrics["players"]["main_exploiter"]["incarnation"] > 0
    assert metrics["games"] + metrics["games_stale"] == len(seen.episodes)
    assert metrics["games_stale"] > 0
