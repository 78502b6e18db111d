"""Policies of a run that do not learn, by name after training: in evaluations, from `mf.load`, and in `play`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.cli.run_folder import checked_run
from marlflow.trained.games import seating
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.driver.test_opponents import always_paper, groups
from tests.driver.two_groups import WIDTHS
from tests.league.runs import LEAGUES, MAIN, league_run
from tests.runtime.small_runs import small_run

POLICIES = {"main": MAIN, "paper": mf.Policy(mf.Scripted(always_paper))}
ASKED = mf.Evaluation(10_000, 4, opponents=("random", "paper"))
SEATS = ["player_0", "player_1"]


def without_league(policies: dict[str, mf.Policy]) -> mf.Experiment:
    env, rules = mf.Env(RockPaperScissors, num_envs=2), (mf.Rule("*", "main"),)
    return small_run(env=env, policies=policies, mapping=rules, evaluation=ASKED, env_steps=100)


@pytest.fixture(scope="module", params=["league", "no league"])
def run_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the policy `main`, evaluated against `paper`, which plays no agent in training."""
    league = league_run(LEAGUES["pfsp"], 200, policies=POLICIES, evaluation=ASKED)
    folder = tmp_path_factory.mktemp("runs") / "run"
    mf.train(league if request.param == "league" else without_league(POLICIES), folder)
    return folder


def test_an_opponent_of_the_run_is_a_member_and_an_opponent_in_every_seat(run_dir: Path) -> None:
    found = mf.evaluate(run_dir, members=["main", "paper"], against=["paper", "random"], episodes=8)
    pairs = [(member, other) for member in ("main", "paper") for other in ("paper", "random")]
    assert [(one.member, one.opponent, list(one.by_side)) for one in found.comparisons] == [
        (*pair, SEATS) for pair in pairs
    ]
    own = {tuple(one.returns.values()) for one in found.games if one.member == one.opponent == "paper"}
    assert own == {(0.0, 0.0)}, "paper against paper is a draw in every round"
    assert found.about["paper"]["algorithm"] == "scripted"
    assert checked_run(str(run_dir), "evaluate", None, ["paper"]) == run_dir


def test_errors_list_it(run_dir: Path) -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"no member 'papre'; did you mean 'paper'\?"):
        mf.evaluate(run_dir, against=["papre"])
    with pytest.raises(mf.ConfigInvalid, match=r"no member 'zzzzzz'; there are main.*, paper, random, team"):
        mf.evaluate(run_dir, against=["zzzzzz"])


def test_it_acts_for_a_loaded_team_and_sits_at_the_table(run_dir: Path) -> None:
    team = mf.load(run_dir)
    assert "paper" in team.policies
    seen, infos = team.make_env().reset(seed=team.reset(seed=0))
    assert [team.act(agent, seen[agent], infos[agent], policy="paper") for agent in SEATS] == [1, 1]
    assert seating(team, None, "paper", {}, SEATS) == {"player_0": "main", "player_1": "paper"}


def test_a_frozen_opponent_plays_with_its_parameters(tmp_path: Path) -> None:
    mf.train(league_run(LEAGUES["pfsp"], 200), tmp_path / "source")
    frozen = {**POLICIES, "paper": mf.Policy(mf.Frozen(str(tmp_path / "source"), policy="main@1"))}
    mf.train(without_league(frozen), tmp_path / "run")
    about = mf.evaluate(tmp_path / "run", against="paper", episodes=2).about["paper"]
    of_source = mf.evaluate(tmp_path / "source", members="main@1", episodes=2).about["main@1"]
    assert (about["member"], about["sha256"]) == ("main@1", of_source["sha256"])


def first_action(obs: Any, action_mask: Any, generator: Any) -> Any:
    """Act in the spaces of either group."""
    return np.zeros((len(obs), 1), np.float32) if obs.shape[1] == WIDTHS["right"] else np.zeros(len(obs), np.int64)


def test_where_seats_differ_it_plays_those_that_it_was_made_for(tmp_path: Path) -> None:
    policies = {"left": MAIN, "right": MAIN, "still": mf.Policy(mf.Scripted(first_action))}
    mf.train(groups(("still",), policies=policies), tmp_path)
    found = mf.evaluate(tmp_path, against="still", episodes=2)
    assert [(one.member, list(one.by_side)) for one in found.comparisons] == [("left", ["left"]), ("right", ["right"])]
