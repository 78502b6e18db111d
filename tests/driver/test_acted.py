"""Evaluations say how policies acted, by their actions, and show shares of wins only if a side can win."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.driver.evaluation_files import as_json, as_table
from marlflow.league.members import Members
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.sides import default_sides
from marlflow.league.standings import standings, standings_text
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run


def paper(obs: Any, action_mask: Any, generator: Any) -> Any:
    return np.ones(len(obs), np.int64)


class Together(RockPaperScissors):
    """A game in which both receive the same, which is nothing unless they agree ten times on `value`."""

    value = 0.0

    def step(self, actions: dict[str, int]) -> Any:
        seen, rewards, *ends = super().step(actions)
        return seen, dict.fromkeys(rewards, self.value), *ends


class Rewarded(Together):
    value = -0.3


def seats(env: Any, first: Any, second: Any, **changes: Any) -> mf.Experiment:
    policies = {"first": mf.Policy(first, SMALL), "second": mf.Policy(second, SMALL)}
    rules = (mf.Rule("player_0", "first"), mf.Rule("player_1", "second"))
    return small_run(env=mf.Env(env, num_envs=4), env_steps=200, policies=policies, mapping=rules, **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    sampled = mf.Evaluation(every_env_steps=100, episodes=3, mode="sampled")
    mf.train(seats(RockPaperScissors, SMALL_PPO, SMALL_DQN, evaluation=sampled), folder / "learned")
    mf.train(seats(RockPaperScissors, SMALL_PPO, mf.Scripted(paper)), folder / "scripted")
    for env in (Together, Rewarded):
        mf.train(seats(env, SMALL_PPO, SMALL_DQN), folder / env.__name__)
    return folder


SAMPLED_BY_PPO = {"first": "sampled", "second": "greedy"}
ACTED: dict[str, tuple[str, dict[str, Any], dict[str, str], str]] = {
    "sampled": ("learned", {"mode": "sampled"}, SAMPLED_BY_PPO, "greedy: second; sampled: first; "),
    "as in the run": ("learned", {}, SAMPLED_BY_PPO, "greedy: second; sampled: first; "),
    "greedy": ("learned", {"mode": "greedy"}, dict.fromkeys(SAMPLED_BY_PPO, "greedy"), "all policies act greedily; "),
    "games": (
        "learned",
        {"against": "random"},
        SAMPLED_BY_PPO | {"random": "sampled"},
        "greedy: second; sampled: first, random; ",
    ),
    "greedy games": (
        "learned",
        {"against": "random", "mode": "greedy"},
        {"first": "greedy", "random": "sampled", "second": "greedy"},
        "greedy: first, second; sampled: random; ",
    ),
    "one member": (
        "learned",
        {"members": "first", "against": "random"},
        {"first": "sampled", "random": "sampled"},
        "all policies sample their actions; ",
    ),
    "scripted": ("scripted", {"mode": "sampled"}, SAMPLED_BY_PPO, "greedy: second; sampled: first; "),
}


@pytest.mark.parametrize("name", ACTED)
def test_the_footer_says_how_policies_acted(name: str, runs: Path) -> None:
    run, arguments, acted, footer = ACTED[name]
    found = mf.evaluate(runs / run, episodes=4, **arguments)
    assert found.modes == acted
    assert footer + "intervals are over" in as_table(found)
    assert as_json(found)["modes"] == acted


def test_a_run_reports_how_its_policies_acted(runs: Path) -> None:
    reports = [json.loads(line) for line in (runs / "learned" / "metrics.jsonl").read_text("utf-8").splitlines()]
    acted = [{name: one["eval_mode"] for name, one in report["policies"].items()} for report in reports]
    assert acted[-1] == SAMPLED_BY_PPO


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
@pytest.mark.parametrize("env", [Together, Rewarded])
def test_where_agents_share_their_rewards_nobody_wins_and_nobody_draws(env: Any, mode: Any, runs: Path) -> None:
    together, games = (mf.evaluate(runs / env.__name__, episodes=6, mode=mode, against=of) for of in (None, "random"))
    for found in (together, games):
        assert not {"win", "draw", "loss"} & set(as_table(found).splitlines()[0].split())
    assert "in no game did a side score more than another, so no side won" in as_table(games)
    assert not any(one.results is None or one.results.has_winners for one in games.comparisons)
    assert all(one.win is None for one in together.returns)


@pytest.mark.parametrize(("returns", "says"), [((0.0, 0.0), True), ((3.0, 3.0), True), ((1.0, -1.0), False)])
def test_standings_say_if_nobody_has_ever_won(returns: tuple[float, float], says: bool) -> None:
    agents = ["player_0", "player_1"]
    members = Members(default_sides(agents), {"main": agents, "random": agents}, live=["main"])
    payoffs = Payoffs(members.sides, live=["main"])
    assert "no side won" not in standings_text(standings(members, payoffs, Ratings(["main"])))
    payoffs.add(Game(("main", "random"), returns, env_steps=9))
    assert ("no side won" in standings_text(standings(members, payoffs, Ratings(["main"])))) == says
