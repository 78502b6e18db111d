"""Notices about misleading figures: one game played many times, and returns that cancel out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.driver.evaluation import SelfPlay, same_games
from marlflow.env.games import cartpole_team
from marlflow.sampling.receipts import EpisodeResult, Receipt
from tests.driver.test_opponents import ONE, SEATS, TWO, game
from tests.driver.watching import Seen, reports

PLAIN = mf.Log(every_env_steps=80, console="plain", tensorboard=False)


def episode(number: int, fingerprint: int = 7, red: str = "fox", returns: tuple[float, float] = (1, -1)) -> Any:
    matchup = {"fox": "red" if red == "fox" else "blue", "hen": "blue" if red == "fox" else "red"}
    return EpisodeResult(0, number, 5, dict(zip(("fox", "hen"), returns, strict=True)), 0, matchup, fingerprint)


def test_episodes_that_are_all_one_game_are_found_and_what_to_set_depends_on_what_is_set() -> None:
    games = [episode(number) for number in range(20)]
    text = same_games(games, mf.Evaluation(mode="greedy"))
    assert text == (
        "the 20 evaluation episodes were the same game, repeated: observations, actions and rewards are identical; "
        "evaluation.mode=as_learned draws actions from what was learned, where that is a distribution, "
        "evaluation.opponents=[random] evaluates each policy against random ones, "
        "evaluation.episodes=1 plays no game twice"
    )
    as_learned = same_games(games, mf.Evaluation(opponents=("random",)))
    assert as_learned is not None
    assert as_learned.endswith("are identical; evaluation.episodes=1 plays no game twice")
    swapped = [episode(number, red="fox" if number % 2 else "hen") for number in range(6)]
    text = same_games(swapped, mf.Evaluation())
    assert text is not None
    assert text.startswith("the 6 evaluation episodes were 2 games, one for each seating, repeated")
    assert "evaluation.episodes=2 plays no game twice" in text


@pytest.mark.parametrize("other", [{"fingerprint": 8}, {"returns": (0.5, -0.5)}])
def test_episodes_of_which_any_differs_are_not(other: dict[str, Any]) -> None:
    assert same_games([*(episode(number) for number in range(19)), episode(19, **other)], mf.Evaluation()) is None
    assert same_games([episode(0)], mf.Evaluation()) is None
    assert same_games([], mf.Evaluation()) is None


def found(returns: list[tuple[float, ...]], policies: tuple[str, ...] = ("main", "main")) -> list[str]:
    names = [f"agent_{number}" for number in range(len(returns[0]))]
    matchup = dict(zip(names, policies, strict=True))
    played = [EpisodeResult(0, n, 5, dict(zip(names, one, strict=True)), n, matchup) for n, one in enumerate(returns)]
    watching = SelfPlay()
    return [text for one in played for text in watching.check([Receipt(0, 5, 5, (one,), {}, 0, 0.0, 0.0, 0.0)])]


def test_returns_that_cancel_out_in_every_episode_are_found_once() -> None:
    (text,) = found([(1.0, -1.0), (-1.0, 1.0), (0.0, 0.0)] * 20)
    assert text == (
        "policy main plays all agents, and what one of them wins the others lose: its mean return was 0.00 in each "
        "of 20 episodes, and will be, however well it plays; evaluation.opponents=[random] evaluates it against "
        "random ones"
    )


def test_returns_that_change_or_are_shared_or_are_of_several_policies_are_not() -> None:
    assert found([(1.0, -1.0), (-1.0, 1.0)] * 9) == []
    # Each agent's own return never changes, so that nobody wins what others lose.
    assert found([(-17.0, -34.0)] * 40) == []
    assert found([(1.0, -1.0)] * 19 + [(1.0, -0.9)] + [(1.0, -1.0)] * 30) == []
    assert found([(2.0, 2.0)] * 40) == []
    assert found([(1.0, -1.0)] * 40, ("main", "rival")) == []


@pytest.fixture
def self_play() -> mf.Experiment:
    """A policy against itself, greedily: 10 rounds in each episode."""
    experiment = replace(game(None), log=PLAIN, stop=mf.Stop(env_steps=400))
    return replace(experiment, evaluation=mf.Evaluation(every_env_steps=80, episodes=5, mode="greedy"))


def test_a_run_says_both_once_and_in_its_log(
    self_play: mf.Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mf.train(self_play, tmp_path)
    said = capsys.readouterr().out
    assert said.count("the 5 evaluation episodes were the same game, repeated") == 1
    assert said.count("its mean return was 0.00 in each of 20 episodes") == 1
    log = (tmp_path / "run.log").read_text(encoding="utf-8")
    assert "the same game, repeated" in log
    assert "its mean return was 0.00" in log
    evaluated = [report["policies"]["player"] for report in reports(tmp_path)]
    assert {(one["eval_episodes"], one["eval_episodes_distinct"]) for one in evaluated} == {(5, 1)}


def test_what_it_says_to_set_helps(
    self_play: mf.Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: Seen
) -> None:
    settings = mf.Evaluation(every_env_steps=80, episodes=6, opponents=("random",))
    mf.train(replace(self_play, evaluation=settings), tmp_path)
    said = capsys.readouterr().out
    assert ", repeated" not in said
    assert "in each of 20 episodes" not in said
    assert reports(tmp_path)[-1]["policies"]["player"]["eval_episodes_distinct"] == 6


def test_two_policies_in_a_game_that_no_seed_changes_play_one_game(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = replace(game(None, policies=TWO, mapping=SEATS), log=PLAIN)
    mf.train(replace(experiment, evaluation=mf.Evaluation(episodes=3, mode="greedy")), tmp_path)
    said = capsys.readouterr().out
    assert "the 3 evaluation episodes were the same game, repeated" in said
    assert "its mean return was" not in said


def test_nothing_is_said_where_seeds_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Carts start at random, so no two episodes are alike; all are of one team, whose agents receive the same."""
    env = mf.Env(cartpole_team.parallel_env, {"max_cycles": 20}, num_envs=2)
    team = {"player": ONE["player"]}
    experiment = replace(game(None, policies=team), env=env, log=PLAIN, stop=mf.Stop(env_steps=800))
    mf.train(replace(experiment, evaluation=mf.Evaluation(episodes=3)), tmp_path)
    said = capsys.readouterr().out
    assert ", repeated" not in said
    assert "in each of" not in said
    assert reports(tmp_path)[-1]["policies"]["player"]["eval_episodes_distinct"] == 3
