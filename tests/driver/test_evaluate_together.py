"""Policies of a run evaluated together: against a naive loop, against teams of other runs, and the statistics."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import trim_mean

import marlflow as mf
from marlflow.driver.evaluation_files import as_csv, as_json, as_table, as_tables, write_evaluation
from marlflow.league.comparison import ComparedGame, mean_estimate, policy_returns, wilson
from marlflow.league.sides import default_sides
from tests.driver.joint_learning import team_run
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run


@pytest.fixture(scope="module")
def carts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("carts") / "run"
    mf.train(small_run(env_steps=320), run_dir)
    return run_dir


def loop(run_dir: Path, found: mf.EvaluationResult, mode: Any) -> list[dict[str, float]]:
    """Returns of the same episodes, by `mf.load` and a loop of a user's own."""
    team, totals = mf.load(run_dir), []
    env = team.make_env()
    for game in found.games:
        team.reset()
        seen, infos = env.reset(seed=game.seed)
        returns = dict.fromkeys(env.possible_agents, 0.0)
        while env.agents:
            seen, rewards, _, _, infos = env.step({a: team.act(a, seen[a], infos[a], mode) for a in env.agents})
            returns = {agent: total + rewards.get(agent, 0.0) for agent, total in returns.items()}
        totals.append(returns)
    return totals


def test_policies_play_together_as_they_were_trained(carts: Path) -> None:
    found = mf.evaluate(carts, episodes=25, seed=3, mode="greedy")
    assert found.comparisons == []
    assert [dict(game.returns) for game in found.games] == loop(carts, found, "greedy")
    assert [(one.policy, one.agents) for one in found.returns] == [
        ("hunters", ["cart_0", "cart_1"]),
        ("prey", ["cart_2", "cart_3"]),
    ]
    for one in found.returns:
        means = [np.mean([game.returns[agent] for agent in one.agents]) for game in found.games]
        sums = [sum(game.returns[agent] for agent in one.agents) for game in found.games]
        assert (one.episodes, one.mean.value) == (25, pytest.approx(np.mean(means)))
        assert one.team.mean.value == pytest.approx(np.mean(sums))
        assert (one.team.iqm, one.team.median) == pytest.approx((trim_mean(sums, 0.25), np.median(sums)))
        assert one.iqm == pytest.approx(trim_mean(means, 0.25))
        assert one.median == pytest.approx(np.median(means))
        assert one.length == pytest.approx(np.mean([game.env_steps for game in found.games]))
        assert one.win is None, "nobody wins: returns have no constant sum"
    assert (found.lost, found.distinct) == (0, 25)


def test_the_mode_is_that_of_the_runs_evaluation_unless_given(carts: Path) -> None:
    greedily = replace(small_run(), evaluation=mf.Evaluation(mode="greedy"))
    as_learned, greedy, sampled = (mf.evaluate(carts, episodes=4, mode=m) for m in ("as_learned", "greedy", "sampled"))
    by_default, by_setting = mf.evaluate(carts, episodes=4), mf.evaluate(carts, greedily, episodes=4)
    played = [[g.returns for g in one.games] for one in (by_default, as_learned, sampled, by_setting, greedy)]
    assert played[0] == played[1] == played[2] != played[3] == played[4]
    for one in (by_default, as_learned, sampled):
        assert str(one).splitlines()[-1].startswith("greedy: prey; sampled: hunters; "), "values have no distribution"
    assert str(greedy).splitlines()[-1].startswith("all policies act greedily; ")


def test_the_same_arguments_give_the_same_bytes_but_for_times(carts: Path) -> None:
    texts = [
        json.dumps(as_json(mf.evaluate(carts, episodes=6), games=True) | {"duration_s": 0, "ended_s": 0})
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert as_csv(mf.evaluate(carts, episodes=2)).count("\n") == 1


def test_a_zero_sum_game_of_two_policies_counts_wins(tmp_path: Path) -> None:
    first, second = mf.Policy(SMALL_PPO, SMALL), mf.Policy(mf.Random())
    rules = (mf.Rule("player_0", "first"), mf.Rule("player_1", "second"))
    env = mf.Env(RockPaperScissors, num_envs=4)
    mf.train(small_run(env=env, env_steps=100, policies={"first": first, "second": second}, mapping=rules), tmp_path)
    found = mf.evaluate(tmp_path, episodes=30, mode="sampled")
    one, other = found.returns
    assert one.win is not None
    assert other.loss is not None
    assert one.win == other.loss
    won = sum(game.returns["player_0"] > 0 for game in found.games)
    assert one.win.value == won / 30
    assert as_table(found).splitlines()[0].split()[-3:] == ["win", "draw", "loss"]


def test_self_play_says_that_its_return_means_nothing(tmp_path: Path) -> None:
    policies = {"player": mf.Policy(SMALL_PPO, SMALL)}
    env = mf.Env(RockPaperScissors, num_envs=4)
    mf.train(small_run(env=env, env_steps=100, policies=policies, mapping=None), tmp_path)
    for mode, reason in {
        "greedy": "all scored 0; if what one wins",
        "sampled": "what one wins the others lose",
    }.items():
        text = as_table(mf.evaluate(tmp_path, episodes=5, mode=mode))  # type: ignore[arg-type]
        assert f"played all sides, and {reason}" in text
        assert "against=random evaluates it" in text


def test_a_team_of_another_run_is_one_player(carts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-play of teams whose policies learned together: each speaker with each listener, and with its own."""
    monkeypatch.chdir(tmp_path)
    mf.train(team_run(240), tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    home, other = (mf.evaluate("one", members=["team"], against=[rival], episodes=6) for rival in ("team", "copy"))
    assert [game.returns for game in home.games] == [game.returns for game in other.games]
    assert list(home.games[0].seating.values()) == ["speaker", "listener", "walker"]
    assert [list(game.seating.values()) for game in other.games[:3]] == [
        ["speaker", "copy:listener", "copy:walker"],
        ["copy:speaker", "listener", "copy:walker"],
        ["copy:speaker", "copy:listener", "walker"],
    ]
    mixed = mf.evaluate("one", members=["team"], against=["random"], episodes=6)
    assert [game.returns for game in mixed.games] != [game.returns for game in home.games]
    with pytest.raises(mf.ConfigInvalid, match=r"prey of .* observes Box.*, and agent 'speaker_0' observes"):
        mf.evaluate("one", against=[str(carts)])


def test_a_policy_may_have_the_name_team(tmp_path: Path) -> None:
    base = small_run(env_steps=80)
    policies = {"team": base.policies["hunters"], "prey": base.policies["prey"]}
    rules = (mf.Rule("cart_0", "team"), mf.Rule("*", "prey"))
    mf.train(small_run(env_steps=80, policies=policies, mapping=rules), tmp_path)
    assert [one.policy for one in mf.evaluate(tmp_path, episodes=2).returns] == ["team", "prey"]


def test_all_episodes_equal_give_an_interval_of_no_width_and_a_note() -> None:
    games = [ComparedGame("team", "", None, seed, {"a": "p"}, {"a": 200.0}, 200, 7) for seed in range(20)]
    (one,) = policy_returns(games, None)
    assert (one.mean.value, one.mean.low, one.mean.high, one.iqm, one.median) == (200.0,) * 5


def test_an_episode_without_an_agent_of_a_policy_does_not_count_for_it() -> None:
    seating = {"a_0": "p", "a_1": "p", "b_0": "q"}
    games = [
        ComparedGame("team", "", None, 0, seating, {"a_0": 1.0, "a_1": 3.0, "b_0": 5.0}, 4),
        ComparedGame("team", "", None, 1, seating, {"a_0": 6.0}, 8),
    ]
    first, second = policy_returns(games, default_sides(["a_0", "a_1", "b_0"]))
    assert (first.episodes, first.mean.value, first.team.mean.value, first.length) == (2, 4.0, 5.0, 6.0)
    assert (second.episodes, second.mean.value, second.mean.low) == (1, 5.0, None)
    assert first.returns("sum") == first.team
    assert first.returns("mean").mean == first.mean


def test_episodes_that_do_not_differ_are_said(tmp_path: Path) -> None:
    policies = {"player": mf.Policy(SMALL_PPO, SMALL)}
    env = mf.Env(RockPaperScissors, num_envs=4)
    mf.train(small_run(env=env, env_steps=100, policies=policies, mapping=None), tmp_path)
    found = mf.evaluate(tmp_path, episodes=10, mode="greedy")
    assert found.distinct == 1
    assert "only 1 of 10 episodes differ" in as_table(found)
    # Where actions are drawn, as many equal episodes are a chance, for which intervals are right.
    assert "episodes differ" not in as_table(replace(found, mode="sampled", modes={"player": "sampled"}))


def test_runs_are_shown_in_one_table(carts: Path) -> None:
    found = mf.evaluate(carts, episodes=3)
    lines = as_tables({"runs/a": found, "runs/b": found}).splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [
        [run, policy] for run in ("runs/a", "runs/b") for policy in ("hunters", "prey")
    ]


def test_a_table_says_which_return_it_shows(carts: Path) -> None:
    found = mf.evaluate(carts, episodes=3)
    per_agent, summed = (as_tables({"": found}, units).splitlines() for units in ("mean", "sum"))
    assert "return per agent [95 %]" in per_agent[0]
    assert "return, sum over agents [95 %]" in summed[0]
    for line, one in zip(summed[1:], found.returns, strict=False):
        total = np.mean([sum(game.returns[agent] for agent in one.agents) for game in found.games])
        assert f" {total:.2f} [" in line


def test_small_returns_are_not_shown_as_zero(carts: Path) -> None:
    found = mf.evaluate(carts, episodes=3)

    def small(one: Any) -> Any:
        mean = replace(one.mean, value=2.6e-4, low=2.5e-4, high=2.7e-4)
        return replace(one, mean=mean, iqm=2.61e-4, median=2.55e-4)

    table = as_table(replace(found, returns=[small(one) for one in found.returns]))
    assert "0.00026 [0.00025, 0.00027]  0.00026  0.00026" in table


def test_only_the_episodes_are_written_without_opponents(carts: Path, tmp_path: Path) -> None:
    found = mf.evaluate(carts, episodes=3)
    (path,) = write_evaluation(found, tmp_path)
    data = json.loads(path.read_text("utf-8"))
    assert [game["side"] for game in data["games"]] == [None] * 3
    assert data["policies"][0]["return"]["value"] == found.returns[0].mean.value


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_intervals_of_1000_simulated_runs_cover_as_often_as_they_say(share: float) -> None:
    random = np.random.default_rng(11)
    won = random.binomial(100, share, 1_000)
    covered = [(one := wilson(int(count), 100)).low <= share <= one.high for count in won]  # type: ignore[operator]
    assert 0.93 <= np.mean(covered) <= 0.97
    scores = random.normal(5.0, 2.0, (1_000, 30))
    within = [(one := mean_estimate(row.tolist())).low <= 5.0 <= one.high for row in scores]  # type: ignore[operator]
    assert 0.93 <= np.mean(within) <= 0.97
