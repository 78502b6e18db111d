"""Evaluation against opponents: who is seated where, whose returns count, and what cannot be played."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.checks.validation import ready
from marlflow.config.opponents import sides_in_turn
from marlflow.sampling.receipts import EpisodeResult
from tests.driver.rock_paper_scissors import ROUNDS, RockPaperScissors
from tests.driver.test_matchmakers import Undeclared
from tests.driver.two_groups import TwoGroups
from tests.driver.watching import Seen, reports
from tests.runtime.small_runs import SMALL, small_run, without_times

A2C = mf.A2C(batch_agent_steps=20, learning_rate=0.0)
ONE = {"player": mf.Policy(A2C, SMALL)}
TWO = {name: mf.Policy(A2C, SMALL) for name in ("red", "blue")}
SEATS = (mf.Rule("player_0", "red"), mf.Rule("player_1", "blue"))


def always_paper(obs: Array, action_mask: Array | None, generator: mf.RowRandom) -> Array:
    return np.ones(len(obs), np.int64)


def game(opponents: Any, episodes: int = 6, **changes: Any) -> mf.Experiment:
    """A run of rock, paper, scissors of 40 env steps, which is evaluated after its first round and at its end."""
    evaluation = mf.Evaluation(10_000, episodes, mode="sampled", opponents=opponents)
    changes = {"policies": ONE, "mapping": (mf.Rule("*", "player"),), **changes}
    return small_run(env=mf.Env(RockPaperScissors, num_envs=2), evaluation=evaluation, env_steps=40, **changes)


def seatings(episodes: Any) -> list[tuple[str, ...]]:
    """The seating: the policies in the order of the agents, opponents of no run by their own names."""
    return [tuple(name.partition("/")[0] for name in episode.matchup.values()) for episode in episodes]


@pytest.mark.parametrize(
    ("own", "agents", "sides"),
    [
        (["fox"], ["fox", "hen"], [("fox",)]),
        (["p_0", "p_2"], ["p_0", "p_1", "p_2", "p_3"], [("p_0", "p_2")]),
        (["p_0", "p_1"], ["p_0", "p_1"], [("p_0",), ("p_1",)]),
        (["a_0", "a_1", "b_0"], ["a_0", "a_1", "b_0"], [("a_0", "a_1"), ("b_0",)]),
    ],
)
def test_a_policy_keeps_its_agents_and_one_that_plays_all_takes_its_sides_in_turn(
    own: list[str], agents: list[str], sides: list[tuple[str, ...]]
) -> None:
    assert sides_in_turn(own, agents) == sides


def test_a_policy_that_plays_itself_is_evaluated_in_each_seat_against_a_random_one(tmp_path: Path, seen: Seen) -> None:
    mf.train(game(("random",)), tmp_path)
    for episodes in seen.evaluations:
        assert seatings(episodes) == [("player", "random"), ("random", "player")] * 3
    expected = [fmean(r for a, r in e.returns.items() if e.matchup[a] == "player") for e in seen.evaluations[-1]]
    last = reports(tmp_path)[-1]["policies"]["player"]
    assert last["return_mean"] == pytest.approx(0.0)
    assert last["eval_return_mean"] == pytest.approx(fmean(expected))
    assert last["eval_return_mean"] != pytest.approx(0.0)
    assert last["eval_return_std"] == pytest.approx(float(np.std(expected)))
    assert last["eval_against"] == {"random": last["eval_return_mean"]}
    assert last["eval_episodes"] == 6
    assert reports(tmp_path)[-1]["eval_team_return_mean"] is None
    assert list(reports(tmp_path)[-1]["policies"]) == ["player"], "an opponent is no policy of the run"


def test_each_policy_that_learns_has_episodes_of_its_own_against_each_opponent_but_itself(
    tmp_path: Path, seen: Seen
) -> None:
    mf.train(game(("blue", "random"), 4, policies=TWO, mapping=SEATS), tmp_path)
    red, blue = [("red", "blue"), ("red", "random")] * 2, [("random", "blue")] * 4
    assert seatings(seen.evaluations[-1]) == red + blue
    found = reports(tmp_path)[-1]["policies"]
    assert [(found[name]["eval_episodes"], list(found[name]["eval_against"])) for name in ("red", "blue")] == [
        (4, ["blue", "random"]),
        (4, ["random"]),
    ]
    against = [fmean(e.returns["player_0"] for e in seen.evaluations[-1][first:4:2]) for first in (0, 1)]
    assert list(found["red"]["eval_against"].values()) == pytest.approx(against)


def test_all_pairings_of_a_policy_have_as_many_episodes(tmp_path: Path, seen: Seen) -> None:
    mf.train(game(("blue", "random"), 5, policies=TWO, mapping=SEATS), tmp_path)
    red, blue = [("red", "blue"), ("red", "random")] * 3, [("random", "blue")] * 5
    assert seatings(seen.evaluations[-1]) == red + blue
    found = reports(tmp_path)[-1]["policies"]
    assert (found["red"]["eval_episodes"], found["blue"]["eval_episodes"]) == (6, 5)
    assert found["red"]["eval_return_mean"] == pytest.approx(fmean(found["red"]["eval_against"].values()))


def test_a_scripted_policy_may_be_an_opponent_and_nothing_else(tmp_path: Path, seen: Seen) -> None:
    policies = {**ONE, "paper": mf.Policy(mf.Scripted(always_paper))}
    mf.train(game(("paper",), policies=policies), tmp_path)
    assert seatings(seen.evaluations[-1]) == [("player", "paper"), ("paper", "player")] * 3
    assert not any("paper" in episode.matchup.values() for episode in seen.episodes)
    with pytest.raises(mf.ConfigInvalid, match="policy 'paper' plays no agent"):
        ready(game(("random",), policies=policies))


def test_with_a_matchmaker_each_policy_takes_every_seat_that_fits_it(tmp_path: Path, seen: Seen) -> None:
    mf.train(game(("random",), 2, policies=TWO, mapping=mf.RandomSeats(["red", "blue"])), tmp_path)
    names = [("red", "random"), ("random", "red"), ("blue", "random"), ("random", "blue")]
    assert seatings(seen.evaluations[-1]) == names


def groups(opponents: Any, **changes: Any) -> mf.Experiment:
    """Two groups that see and do different things."""
    policies = {name: mf.Policy(A2C, SMALL) for name in ("left", "right")}
    evaluation = mf.Evaluation(10_000, 2, opponents=opponents)
    env = mf.Env(TwoGroups, {"box": ("right",)}, num_envs=2)
    changes = {"env": env, "policies": policies, "mapping": None, "evaluation": evaluation, **changes}
    return small_run(env_steps=40, **changes)


def test_an_opponent_takes_seats_of_different_spaces(tmp_path: Path, seen: Seen) -> None:
    mf.train(groups(("random",)), tmp_path)
    assert seatings(seen.evaluations[-1]) == [("left", "left", "random")] * 2 + [("random", "random", "right")] * 2
    found = reports(tmp_path)[-1]["policies"]["left"]
    assert found["eval_team_return_mean"] == pytest.approx(
        fmean(e.returns["left_0"] + e.returns["left_1"] for e in seen.evaluations[-1][:2])
    )


def test_the_same_weights_meet_the_same_opponents_whenever_they_are_evaluated(tmp_path: Path, seen: Seen) -> None:
    def results(episodes: Any) -> list[EpisodeResult]:
        return [replace(episode, tick=0) for episode in episodes]

    mf.train(game(("random",)), tmp_path)
    first, last = (results(episodes) for episodes in seen.evaluations)
    assert first == last
    assert len({episode.fingerprint for episode in last}) > 1


def test_opponents_change_nothing_of_the_run_and_may_change_on_resume(tmp_path: Path) -> None:
    found = []
    for name, opponents in (("with", ("random",)), ("without", None)):
        mf.train(game(None), tmp_path / name)
        longer = replace(game(opponents), stop=mf.Stop(env_steps=120))
        found.append(without_times(mf.resume(longer, tmp_path / name).metrics))
    for one in found:
        one["eval_team_return_mean"] = None
        one["policies"]["player"] = {k: v for k, v in one["policies"]["player"].items() if not k.startswith("eval_")}
    assert found[0] == found[1]


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (("rnadom",), {}, r"evaluation\.opponents: there is no policy 'rnadom'; did you mean 'random'\?"),
    ((), {}, r"evaluation\.opponents is empty; name opponents, e\.g\. \[random\], or set it to null"),
    (("random", "random"), {}, r"evaluation\.opponents has 'random' more than once"),
    (
        ("player",),
        {},
        r"evaluation\.opponents: 'player' alone learns, and is not evaluated against itself; add 'random'",
    ),
    (("random",), {"episodes": 1}, r"evaluation\.episodes=1 is less than the 2 pairings of a policy .* or to 0"),
]


@pytest.mark.parametrize(("opponents", "changes", "problem"), REFUSED)
def test_opponents_that_make_no_evaluation_are_refused(opponents: Any, changes: Any, problem: str) -> None:
    with pytest.raises(mf.ConfigInvalid, match=problem):
        ready(game(opponents, **changes))


def test_an_opponent_whose_spaces_are_others_is_refused() -> None:
    policies = {name: mf.Policy(A2C, SMALL) for name in ("first", "second", "right")}
    rules = (mf.Rule("left_0", "first"), mf.Rule("left_1", "second"), mf.Rule("right_0", "right"))
    problem = r"evaluation\.opponents: policy 'first' cannot take the seat of agent 'right_0': it was made for Box"
    with pytest.raises(mf.ConfigInvalid, match=problem):
        ready(groups(("first",), policies=policies, mapping=rules))


def test_seats_of_agents_that_nobody_declared_cannot_be_given_away() -> None:
    policies = {"walker": mf.Policy(A2C, SMALL)}
    experiment = groups(("random",), env=mf.Env(Undeclared, num_envs=2), policies=policies)
    with pytest.raises(mf.ConfigInvalid, match="the environment does not declare its agents, so their seats cannot be"):
        ready(replace(experiment, mapping=(mf.Rule("*", "walker"),)))


def test_without_opponents_all_policies_play_together(tmp_path: Path, seen: Seen) -> None:
    mf.train(game(None, policies=TWO, mapping=SEATS), tmp_path)
    assert Counter(seatings(seen.evaluations[-1])) == {("red", "blue"): 6}
    last = reports(tmp_path)[-1]
    assert last["eval_team_return_mean"] == pytest.approx(0.0)
    assert last["episode_env_steps_mean"] == ROUNDS
    assert [last["policies"][name]["eval_against"] for name in TWO] == [{}, {}]
