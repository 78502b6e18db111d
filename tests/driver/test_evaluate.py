"""Evaluation games compared with a naive loop over the same seeds, and all players that can be named."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import marlflow as mf
from marlflow.algorithms.from_run import SavedPolicy
from marlflow.base.random import key
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.base.spaces import Spaces
from marlflow.checks.validation import ready
from marlflow.config.imported_policies import policy_of
from marlflow.driver.evaluation_files import as_csv, as_json, as_table, as_tables, write_evaluation
from marlflow.env.games import cartpole_team
from marlflow.env.wrappers.wrapping import change_observations
from marlflow.runs.saved_league import saved_run
from marlflow.runs.saved_policies import to_export
from marlflow.runs.saved_runs import newest
from marlflow.sampling.receipts import EpisodeResult
from tests.driver.joint_learning import team_run
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.league.runs import LEAGUES, MAIN, league_run
from tests.runtime.small_runs import SMALL, small_run
from tests.sentences import refusals

EVALUATION = -1


class FirstWins(RockPaperScissors):
    """The same, but player_0 wins every round, whatever both do; once in a while it breaks, if it is to."""

    breaks = False

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.doomed = self.breaks and (seed or 0) % 5 == 0
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        if self.doomed:
            raise RuntimeError("broken")
        seen, rewards, *ends = super().step(actions)
        return seen, dict(zip(rewards, (0.1, -0.1), strict=True)), *ends


class Breaking(FirstWins):
    """It breaks in a fifth of its episodes."""

    breaks = True


PFSP_RUN = league_run(LEAGUES["pfsp"], 864)


def of_two(env: Any, **changes: Any) -> mf.Experiment:
    """A run without a league: one policy for each seat, and a scripted one for opponents only."""
    policies = {"first": MAIN, "second": mf.Policy(mf.DQN(learning_starts_agent_steps=100), SMALL)}
    mapping = (mf.Rule("player_0", "first"), mf.Rule("player_1", "second"))
    return small_run(env=mf.Env(env, num_envs=4), policies=policies, mapping=mapping, env_steps=200, **changes)


@pytest.fixture(scope="module")
def league_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pfsp"
    mf.train(PFSP_RUN, folder)
    return folder


def games_of(found: mf.EvaluationResult) -> list[tuple[Any, ...]]:
    return [(one.member, one.opponent, one.side, one.seed, one.seating, one.returns) for one in found.games]


def loop(run_dir: Path, found: mf.EvaluationResult, seed: int) -> list[dict[str, float]]:
    """Returns of the same games, one after the other, from the environment and actors alone."""
    seen = Spaces(spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(3))
    actors: dict[str, Any] = {"random": mf.Random().actor(seen, SMALL, 0)}
    for name in ("main", "main@1", "main@2"):
        assert MAIN.algorithm is not None
        actors[name] = MAIN.algorithm.actor(seen, SMALL, 0)
        file = newest(run_dir)
        flat = (
            from_bytes(file.read(f"frozen.{name}"))["flat"]
            if "@" in name
            else from_bytes(file.read("learner.main"))["published"]
        )
        actors[name].load_flat(flat)
    worker_seed, returns = key(seed, *b"evaluate") >> 33, []
    for number, one in enumerate(found.games):
        env = RockPaperScissors()
        observations, _ = env.reset(seed=one.seed)
        totals, step = dict.fromkeys(env.possible_agents, 0.0), 0
        while env.agents:
            actions = {}
            for slot, agent in enumerate(env.possible_agents):
                keys = np.array([key(worker_seed, EVALUATION, number, slot)], np.uint64)
                generator = mf.RowRandom(keys, np.array([step]))
                acted = actors[one.seating[agent]].act(observations[agent][None], None, None, "sampled", generator)
                actions[agent] = int(acted.action[0])
            observations, rewards, *_ = env.step(actions)
            totals = {agent: total + rewards[agent] for agent, total in totals.items()}
            step += 1
        returns.append(totals)
    return returns


def test_games_are_those_of_a_naive_loop(league_dir: Path) -> None:
    found = mf.evaluate(league_dir, PFSP_RUN, ["main", "main@2"], ["random", "main@1"], episodes=30, seed=5)
    assert [dict(one.returns) for one in found.games] == [pytest.approx(one) for one in loop(league_dir, found, 5)]
    assert len({one.seed for one in found.games}) == len(found.games) == 120
    totals = {tuple(one.returns.values()) for one in found.games}
    assert len(totals) > 5, "the games were to differ"


def test_the_same_arguments_play_the_same_games_and_another_seed_others(league_dir: Path) -> None:
    once, again, other = (mf.evaluate(league_dir, PFSP_RUN, episodes=20, seed=seed) for seed in (1, 1, 2))
    assert games_of(once) == games_of(again)
    assert [one.returns for one in once.games] != [one.returns for one in other.games]
    assert once.comparisons == again.comparisons
    assert as_csv(once) == as_csv(again)
    timeless = [{key: value for key, value in as_json(one, True).items() if key[-2:] != "_s"} for one in (once, again)]
    assert timeless[0] == timeless[1]


def test_seeds_are_apart_from_those_of_training(league_dir: Path) -> None:
    found = mf.evaluate(league_dir, PFSP_RUN, episodes=50, seed=PFSP_RUN.seed)
    of_run = {key(PFSP_RUN.seed, env, episode) >> 33 for env in (-1, 0, 1, 2, 3) for episode in range(500)}
    assert not of_run & {one.seed for one in found.games}


def test_every_side_is_played_equally_often_and_opponents_take_the_others(league_dir: Path) -> None:
    found = mf.evaluate(league_dir, PFSP_RUN, ["main@1"], ["random", "main"], episodes=7)
    assert Counter((one.opponent, one.side) for one in found.games) == {
        (opponent, side): 4 for opponent in ("random", "main") for side in (0, 1)
    }
    for one in found.games:
        expected = ["main@1", one.opponent] if one.side == 0 else [one.opponent, "main@1"]
        assert list(one.seating.values()) == expected


def test_a_result_counts_for_the_side_that_was_played(tmp_path: Path) -> None:
    experiment = league_run(LEAGUES["pfsp"], 100, env=mf.Env(FirstWins, num_envs=4))
    mf.train(experiment, tmp_path)
    (one,) = mf.evaluate(tmp_path, experiment, ["main"], ["random"], episodes=12).comparisons
    assert one.results is not None
    assert (one.results.win.value, one.results.loss.value, one.results.score.value) == (0.5, 0.5, pytest.approx(0.0))
    first, second = one.by_side["player_0"], one.by_side["player_1"]
    assert (first.win.value, first.score.value) == (1.0, pytest.approx(1.0))
    assert (second.loss.value, second.score.value) == (1.0, pytest.approx(-1.0))


def lowest_wins(result: EpisodeResult, sides: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Score the sides of a game of one agent on each side by its return, the lowest best, as golf does."""
    return {side: 3.0 - result.returns[agent] for side, (agent,) in sides.items()}


def test_the_leagues_own_outcome_decides_who_wins(tmp_path: Path) -> None:
    experiment = league_run(LEAGUES["pfsp"], 100, env=mf.Env(FirstWins, num_envs=4))
    assert isinstance(experiment.league, mf.League)
    experiment = replace(experiment, league=replace(experiment.league, outcome=lowest_wins))
    mf.train(experiment, tmp_path)
    found = mf.evaluate(tmp_path, experiment, ["main"], ["random"], episodes=4)
    (one,) = found.comparisons
    first, second = one.by_side["player_0"], one.by_side["player_1"]
    assert (first.loss.value, first.score.value) == (1.0, pytest.approx(1.0))
    assert (second.win.value, second.score.value) == (1.0, pytest.approx(-1.0))
    assert as_table(found).splitlines()[0].split()[3:6] == ["win", "draw", "loss"]
    assert as_json(found, games=True)["games"][0]["scores"] == (2.0, 4.0)


# -- who can be named -----------------------------------------------------------------------------------------------


def test_policies_of_a_run_without_a_league_keep_their_seats(tmp_path: Path) -> None:
    experiment = of_two(FirstWins)
    mf.train(experiment, tmp_path)
    found = mf.evaluate(tmp_path, experiment, against=["random"], episodes=4)
    assert [(one.member, one.opponent, list(one.by_side)) for one in found.comparisons] == [
        ("first", "random", ["player_0"]),
        ("second", "random", ["player_1"]),
    ]
    # One name may be given by itself, and the result is printed as a table.
    both = mf.evaluate(tmp_path, experiment, "second", "first", episodes=4)
    assert str(both) == repr(both) == as_table(both)
    (one,) = both.comparisons
    assert one.results is not None
    assert one.results.loss.value == 1.0
    # Beside it in one table, the same without winners.
    without = replace(one, results=replace(one.results, has_winners=False))
    (_, row, other, *_) = as_tables({"a": both, "b": replace(both, comparisons=(without,))}).splitlines()
    assert [cell.partition(" ")[0] for cell in re.split("  +", row)[4:7]] == ["0.00", "0.00", "1.00"]
    assert re.split("  +", other)[4:7] == ["-", "-", "-"]
    with pytest.raises(mf.ConfigInvalid, match=r"'first' cannot be seated against 'first'.* can play player_0"):
        mf.evaluate(tmp_path, experiment, ["first"], ["first"])


def test_policies_that_learn_together_have_their_own_parameters(tmp_path: Path) -> None:
    experiment = team_run(240)
    mf.train(experiment, tmp_path)
    found = mf.evaluate(tmp_path, experiment, ["speaker", "listener"], ["random"], episodes=3)
    learner = ready(experiment).spec.learners["pair"].learner()
    learner.load_state(from_bytes(newest(tmp_path).read("learner.pair")))
    for name in ("speaker", "listener"):
        flat = learner.parameters.published[name].flat
        assert found.about[name]["sha256"] == SavedPolicy(flat, {}, "").sha256
    assert [list(one.by_side) for one in found.comparisons] == [["speaker"], ["listener"]]


def test_members_of_other_runs_and_files_play_as_at_home(
    league_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = policy_of(saved_run(league_dir), "main@2")
    (tmp_path / "second.safetensors").write_bytes(to_export(saved))
    shutil.copytree(league_dir, tmp_path / "other")
    play = partial(mf.evaluate, league_dir, PFSP_RUN, against=["main@1"], episodes=20)
    home, other, file = (play(members=[label]) for label in ("main@2", "other:main@2", "second.safetensors"))
    for found in (other, file):
        assert [one.returns for one in found.games] == [one.returns for one in home.games]
    hashes = [found.about[found.games[0].member]["sha256"] for found in (home, other, file)]
    assert len(set(hashes)) == 1


def test_classes_of_other_runs_are_imported_only_if_trusted(
    league_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = policy_of(saved_run(league_dir), "main@2")
    config = {**saved.description["config"], "model": {"_target_": f"{__name__}.OwnModel", "hidden_sizes": [16]}}
    changed = SavedPolicy(saved.flat, {**saved.description, "config": config}, "")
    (tmp_path / "own.safetensors").write_bytes(to_export(changed))
    play = partial(mf.evaluate, league_dir, PFSP_RUN, ["own.safetensors"], episodes=2)
    with pytest.raises(mf.ConfigInvalid, match=r"OwnModel'; look at it, and if you trust it add --trust"):
        play()
    for trust in (None, [f"{__name__}.OwnModel"]):
        assert len(play(trust=trust).games) == 2


class OwnModel(mf.MLP):
    """A model of a user's own."""


def test_a_greedy_member_acts_greedily(league_dir: Path, tmp_path: Path) -> None:
    greedy = replace(LEAGUES["pfsp"], snapshots=mf.SnapshotRules(every_agent_steps=150, acts="greedy"))
    found = mf.evaluate(league_dir, replace(PFSP_RUN, league=greedy), ["main"], ["main@1"], episodes=6)
    assert len({tuple(one.returns.values()) for one in found.games if one.side == 0}) == 1
    assert found.about["main"]["acts"] == "greedy"


def test_a_mixture_draws_a_member_for_each_game(tmp_path: Path) -> None:
    always = {action: mf.Scripted(partial(constant, action)) for action in range(3)}
    policies = {"main": MAIN, **{f"always_{action}": mf.Policy(one) for action, one in always.items()}}
    rules = mf.SnapshotRules(at_start=False, every_agent_steps=None)
    league = mf.League(mf.PSRO(agent_steps=100_000, games=4), snapshots=rules)
    experiment = league_run(league, 100, policies=policies)
    mf.train(experiment, tmp_path)
    meta = {"always_0": 0.5, "always_1": 0.3, "always_2": 0.2}
    set_meta(tmp_path, [meta, {"always_0": 0.0, "always_1": 1.0, "always_2": 0.0}])
    found = mf.evaluate(tmp_path, experiment, ["mixture"], ["always_0"], episodes=600)
    drawn = [Counter(one.seating[f"player_{side}"] for one in found.games if one.side == side) for side in (0, 1)]
    assert drawn[1] == {"always_1": 300}
    assert sum((drawn[0][name] - 300 * weight) ** 2 / (300 * weight) for name, weight in meta.items()) < 13.8
    (one,) = found.comparisons
    assert one.by_side["player_0"].score.value == pytest.approx((drawn[0]["always_1"] - drawn[0]["always_2"]) / 300)
    assert one.by_side["player_1"].score.value == pytest.approx(1.0)
    assert games_of(mf.evaluate(tmp_path, experiment, ["mixture"], ["always_0"], episodes=600)) == games_of(found)


def constant(action: int, obs: Any, action_mask: Any, generator: Any) -> Any:
    return np.full(len(obs), action)


def set_meta(run_dir: Path, meta: list[dict[str, float]]) -> None:
    """Write another checkpoint, with these meta-strategies."""
    from marlflow.runs.checkpoints import CheckpointStore

    last = newest(run_dir)
    files = {name: bytes(last.read(name)) for name in last.names}
    driver = from_bytes(files["driver"])
    driver["dealer"]["matchmaker"]["mode"]["meta"] = meta
    files["driver"] = to_bytes(driver)
    store = CheckpointStore(run_dir / "checkpoints", keep=3)
    store.continue_from(last)
    store.write(last.env_steps + 1, files, [], last.notes, None)


# -- files ----------------------------------------------------------------------------------------------------------


def test_files_have_every_game_and_number_themselves(league_dir: Path, tmp_path: Path) -> None:
    found = mf.evaluate(league_dir, PFSP_RUN, ["main"], ["random", "main@1"], episodes=10)
    for number in (1, 2):
        path, matrix = write_evaluation(found, tmp_path)
        assert path == tmp_path / "evaluations" / f"{number}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    assert [game["returns"] for game in data["games"]] == [one.returns for one in found.games]
    assert data["games"][1]["side"] == "player_1"
    for result in data["results"]:
        own = [game for game in data["games"] if game["opponent"] == result["opponent"]]
        wins = sum(game["returns"][game["side"]] > 1e-9 for game in own)
        assert result["win"]["value"] == pytest.approx(wins / len(own))
        assert result["return"]["value"] == pytest.approx(np.mean([game["returns"][game["side"]] for game in own]))
    assert data["members"]["main"]["sha256"] == policy_of(saved_run(league_dir), "main").sha256
    rows = [line.split(",") for line in matrix.read_text(encoding="utf-8").splitlines()]
    assert [row[:4] for row in rows[1:4]] == [
        ["main", "random", "", "10"],
        ["main", "random", "player_0", "5"],
        ["main", "random", "player_1", "5"],
    ]
    assert len({len(row) for row in rows}) == 1


def test_broken_games_are_not_counted_and_are_said(tmp_path: Path) -> None:
    faults = replace(PFSP_RUN.faults, env_errors=100)
    experiment = league_run(LEAGUES["pfsp"], 100, env=mf.Env(Breaking, num_envs=4), faults=faults)
    mf.train(experiment, tmp_path)
    found = mf.evaluate(tmp_path, experiment, ["main"], ["random"], episodes=60)
    (one,) = found.comparisons
    assert one.results is not None
    assert 0 < one.lost == 60 - one.results.games == len(found.faults)
    assert all(game.seed % 5 for game in found.games)
    assert f"{one.lost} games of main against random broke and are not counted" in as_table(found)
    with pytest.raises(mf.StageFailed, match=r"step\(\) raised RuntimeError: broken"):
        mf.evaluate(tmp_path, replace(experiment, faults=PFSP_RUN.faults), ["main"], ["random"], episodes=60)


class AlwaysBreaking(FirstWins):
    """It breaks in its first step."""

    def step(self, action: Any) -> None:
        raise RuntimeError("broken")


def test_an_evaluation_whose_episodes_all_broke_says_why(tmp_path: Path) -> None:
    mf.train(of_two(FirstWins, faults=mf.Faults(env_errors=100)), tmp_path)
    found = mf.evaluate(tmp_path, episodes=5, env=mf.Env(AlwaysBreaking))
    assert found.lost == 5
    text = as_table(found)
    assert "5 episodes broke and are not counted: step() raised RuntimeError: broken" in text
    assert "games" not in text


# -- bad input ------------------------------------------------------------------------------------------------------

PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"members": ["mian"]}, "there is no member 'mian'; did you mean 'main'?"),
    "no such folder": ({"against": ["runs/9"]}, "there is no folder 'runs/9', and no member of this name"),
    "opponent": ({"against": ["randm"]}, "there is no member 'randm'; did you mean 'random'?"),
    "no such snapshot": ({"members": ["main@99"]}, "there is no member 'main@99'; did you mean 'main@[0-9]'"),
    "no such run": ({"against": ["nowhere:main"]}, "there is no directory nowhere; before the colon comes"),
    "member of another": ({"against": ["pfsp:mian"]}, "has no member 'mian'; did you mean 'main'?"),
    "mode": ({"mode": "gredy"}, "mode must be one of as_learned, greedy, sampled, not 'gredy'"),
    "no file": ({"against": ["no.safetensors"]}, "there is no .*no.safetensors; give the folder of a run, or a file"),
    "no export": ({"against": ["wrong.safetensors"]}, "wrong.safetensors is no file of a member"),
    "no mixture": ({"members": ["mixture"]}, "has no meta-strategy; a run with league=psro has one"),
    "no games": ({"episodes": 0}, "episodes must be a whole number from 1 to 10,000,000, not 0"),
    "half a game": ({"episodes": 1.5}, "episodes must be a whole number from 1 to 10,000,000, not 1.5"),
    "games as text": ({"episodes": "100"}, "episodes must be a whole number from 1 to 10,000,000, not '100'"),
    "workers yes or no": ({"workers": True}, "workers must be a whole number from 0 to 10,000, not True"),
    "seed": ({"seed": -1}, "seed must be a whole number from 0"),
    "twice": ({"against": ["random", "random"]}, "against has 'random' more than once"),
    "nobody": ({"against": []}, "against is empty; name at least one"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_bad_input_is_named_before_anything_is_played(
    case: str, league_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, message = PROBLEMS[case]
    monkeypatch.chdir(league_dir.parent)
    (league_dir.parent / "wrong.safetensors").write_bytes(b"12345678 no header")
    monkeypatch.setattr("marlflow.driver.evaluate._play", None)
    with pytest.raises(mf.ConfigInvalid, match=message) as raised:
        mf.evaluate(league_dir, PFSP_RUN, **arguments)
    assert len(raised.value.problems) == 1


def test_all_problems_are_said_at_once(league_dir: Path) -> None:
    assert len(refusals(mf.ConfigInvalid, mf.evaluate, league_dir, PFSP_RUN, ["mian"], ["randm", "nowhere:main"])) == 3


def test_another_experiment_than_that_of_the_run_is_refused(league_dir: Path) -> None:
    other = replace(PFSP_RUN, policies={"main": mf.Policy(MAIN.algorithm, mf.MLP((32,)))})
    with pytest.raises(mf.CheckpointUnusable, match=r"policies.main.model was"):
        mf.evaluate(league_dir, other)


def test_a_member_with_other_spaces_says_which(
    league_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mf.train(small_run(env_steps=200), tmp_path / "carts")
    (problem,) = refusals(mf.ConfigInvalid, mf.evaluate, league_dir, PFSP_RUN, ["main"], ["carts:hunters"])
    assert re.search(
        r"hunters of .*carts observes Box\(.*\) and acts in Discrete\(2\), and agent 'player_0' ", str(problem)
    )


def test_a_damaged_checkpoint_is_named(league_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(league_dir, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/driver.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(mf.CheckpointUnusable, match=r"driver.safetensors has 0 bytes"):
        mf.evaluate(tmp_path / "run", PFSP_RUN)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_over_ray_the_games_are_the_same(league_dir: Path) -> None:
    here, there = (mf.evaluate(league_dir, PFSP_RUN, episodes=20, workers=workers) for workers in (0, 2))
    assert games_of(here) == games_of(there)


def test_self_play_without_snapshots_is_evaluated_too(tmp_path: Path) -> None:
    rules = mf.SnapshotRules(at_start=False, every_agent_steps=None)
    experiment = league_run(mf.League(mf.NaiveSelfPlay(), snapshots=rules), 100)
    mf.train(experiment, tmp_path)
    (one,) = mf.evaluate(tmp_path, experiment, against=["main"], episodes=10).comparisons
    assert one.results is not None
    first, second = one.by_side["player_0"], one.by_side["player_1"]
    assert first.games == second.games == 5


def test_the_environment_may_have_other_settings_in_which_the_policies_fit(tmp_path: Path) -> None:
    experiment = replace(small_run(env_steps=200), env=mf.Env("cartpole_team", {"max_cycles": 30}, num_envs=4))
    mf.train(experiment, tmp_path)
    usual, shorter = (mf.evaluate(tmp_path, episodes=8, env=env) for env in (None, {"max_cycles": 3, "batched": False}))
    assert usual.env == {}
    assert max(game.env_steps for game in usual.games) > 3
    assert {game.env_steps for game in shorter.games} == {3}
    assert as_json(shorter)["env"] == {"max_cycles": 3, "batched": False}
    with pytest.raises(mf.CheckpointUnusable, match="observes"):
        mf.evaluate(tmp_path, env={"velocities": False})


def flipped(env: Any) -> Any:
    """Show carts with their signs changed."""
    return change_observations(env, lambda seen, _: -seen, env.observation_space)


def test_policies_play_in_another_environment_with_their_wrappers_unless_it_has_some(tmp_path: Path) -> None:
    carts = mf.Env("cartpole_team", {"max_cycles": 30}, [flipped], num_envs=4)
    mf.train(replace(small_run(env_steps=40), env=carts), tmp_path)
    same, elsewhere, plain = (
        mf.evaluate(tmp_path, episodes=8, env=env)
        for env in (None, mf.Env("cartpole_team", {"max_cycles": 30}), replace(carts, wrappers=[unchanged]))
    )
    assert [game.fingerprint for game in elsewhere.games] == [game.fingerprint for game in same.games]
    assert [game.fingerprint for game in plain.games] != [game.fingerprint for game in same.games]
    written = as_json(elsewhere)["env"]
    assert (written["_target_"], written["num_envs"]) == ("marlflow.env.games.cartpole_team.parallel_env", 4)
    assert written["wrappers"] == [{"_target_": "tests.driver.test_evaluate.flipped"}]
    target = "env._target_=marlflow.env.games.cartpole_team.parallel_env, "
    assert f"in another environment: {target}" in repr(elsewhere)
    assert "env.max_cycles=30" in repr(elsewhere)
    assert "matches no agent; the agents are player_0" in str(
        refusals(mf.ConfigInvalid, mf.evaluate, tmp_path, env=mf.Env("rps"))
    )


def test_another_environment_needs_nothing_of_the_runs_own(tmp_path: Path) -> None:
    mf.train(replace(small_run(env_steps=40), env=mf.Env("cartpole_team", {"max_cycles": 30}, num_envs=4)), tmp_path)
    record = json.loads((tmp_path / "experiment.json").read_text("utf-8"))
    record["env"] = {"_target_": "nobody_has_it.make", "colors": 3, "num_envs": 4, "wrappers": []}
    (tmp_path / "experiment.json").write_text(json.dumps(record))
    played = mf.evaluate(tmp_path, episodes=2, env=mf.Env("cartpole_team", {"max_cycles": 7}))
    assert max(game.env_steps for game in played.games) <= 7
    assert "nobody_has_it" in str(refusals(mf.ConfigInvalid, mf.evaluate, tmp_path, episodes=2))
    record["env"] = {"_target_": "cartpole_team", "num_envs": 4}
    (tmp_path / "experiment.json").write_text(json.dumps(record))
    # The command line gives no settings as {}.
    (problem,) = refusals(mf.ConfigInvalid, mf.evaluate, tmp_path, trust=None, env={})
    assert "experiment.json: env._target_ must be" in problem
    assert refusals(mf.ConfigInvalid, mf.evaluate, tmp_path, env="cartpole_team") == [
        "env must be an Env, or settings by name, not 'cartpole_team'"
    ]


def test_another_environment_needs_no_factory_that_could_not_be_recorded(tmp_path: Path) -> None:
    def wrapped(env: Any) -> Any:
        return env

    def only_here(**arguments: Any) -> Any:
        return cartpole_team.parallel_env(**arguments)

    carts, shorter = mf.Env("cartpole_team", {"max_cycles": 30}, num_envs=4), mf.Env("cartpole_team", {"max_cycles": 7})
    mf.train(replace(small_run(env_steps=40), env=replace(carts, factory=only_here)), tmp_path / "factory")
    mf.train(replace(small_run(env_steps=40), env=replace(carts, wrappers=[wrapped])), tmp_path / "wrapper")
    (problem,) = refusals(mf.ConfigInvalid, mf.evaluate, tmp_path / "factory", episodes=2)
    assert "only_here" in problem
    (problem,) = refusals(mf.ConfigInvalid, mf.evaluate, tmp_path / "wrapper", episodes=2, env=shorter)
    assert "wrapped" in problem
    for run, env in (("factory", shorter), ("wrapper", replace(shorter, wrappers=[unchanged]))):
        played = mf.evaluate(tmp_path / run, episodes=2, env=env)
        assert max(game.env_steps for game in played.games) <= 7


def unchanged(env: Any) -> Any:
    """A wrapper that changes nothing."""
    return env


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"max_cycle": 3}, "there is no env.max_cycle; did you mean"),
        ({"_target_": "os.system"}, "env._target_ is no setting"),
        ({"max_cycles.x": 3}, "env.max_cycles.x cannot be set: env.max_cycles is 30, no mapping"),
    ],
)
def test_settings_that_the_environment_has_not_are_refused(env: Any, problem: str, tmp_path: Path) -> None:
    experiment = replace(small_run(env_steps=40), env=mf.Env("cartpole_team", {"max_cycles": 30}, num_envs=4))
    mf.train(experiment, tmp_path)
    with pytest.raises(mf.ConfigInvalid, match=problem):
        mf.evaluate(tmp_path, env=env)
    with pytest.raises(mf.ConfigInvalid, match="change the one that is given"):
        mf.evaluate(tmp_path, experiment, env={"max_cycles": 3})
