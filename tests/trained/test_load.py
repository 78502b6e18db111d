"""Policies of finished runs act as the run's own workers let them act, and bad input is one clear error."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pettingzoo import AECEnv

import marlflow as mf
from marlflow.env.games.cartpole_team import parallel_env as carts
from marlflow.policy.actor import EvaluationMode
from marlflow.runs.saved_runs import newest
from tests.env.functional_games import HotPotato
from tests.league.runs import LEAGUES, league_run
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run
from tests.trained.conftest import Trained
from tests.trained.runs import RUNS, by_hand, by_worker, played_alike


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
@pytest.mark.parametrize("name", RUNS)
def test_a_loop_by_hand_plays_as_the_worker_does(name: str, mode: EvaluationMode, trained: Trained) -> None:
    run_dir = trained(name)
    worker = by_worker(RUNS[name], run_dir, 12, mode)
    assert len(worker) == 12
    assert played_alike(worker, by_hand(mf.load(run_dir), 12, mode))


@pytest.mark.slow
def test_it_needs_neither_ray_nor_hydra(trained: Trained) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("ray", "hydra", "omegaconf")))
import marlflow as mf
team = mf.load({str(trained("masks in observations"))!r})
env = team.make_env()
env.reset(seed=team.reset(seed=1))
for agent in env.agent_iter():
    seen, reward, terminated, truncated, info = env.last()
    env.step(None if terminated or truncated else team.act(agent, seen, info))
print(env.rewards if env.agents else "over")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "over\n"), ran.stderr


# -- one policy -------------------------------------------------------------------------------------------------------


def test_a_batch_gives_the_actions_of_its_rows(trained: Trained) -> None:
    team = mf.load(trained("ppo and dqn"))
    rows = np.random.default_rng(0).uniform(-0.2, 0.2, (7, *team["prey"].spaces.obs_shape)).astype(np.float32)
    together = team["prey"].act(rows)
    assert together.tolist() == [team["prey"].act([row])[0] for row in rows]
    assert set(team["prey"].act(rows.repeat(20, 0), mode="sampled", generator=np.random.default_rng(1))) <= {0, 1}


def test_masked_actions_are_never_chosen(trained: Trained) -> None:
    policy = mf.load(trained("masks in observations"))["first"]
    rows = np.zeros((7, 6, 7, 2), np.int8)
    for mode in ("greedy", "sampled"):
        assert policy.act(rows, np.eye(7, dtype=np.int8), mode=mode).tolist() == list(range(7))


def test_memory_is_kept_in_place_and_forgotten_at_an_episodes_start(trained: Trained) -> None:
    team = mf.load(trained("memory"))
    policy = team["prey"]
    seen = np.random.default_rng(0).uniform(-0.2, 0.2, (2, 5, *policy.spaces.obs_shape)).astype(np.float32)
    memory = policy.memory(2)
    assert memory is not None
    assert not memory.any()
    for t in range(5):
        policy.act(seen[:, t], memory=memory)
    alone = policy.memory(1)
    for t in range(5):
        policy.act(seen[1:, t], memory=alone)
    np.testing.assert_allclose(memory[1:], alone, atol=1e-6)
    assert memory.any()
    with pytest.raises(mf.InvalidInput, match=r"has a memory; give act\(\.\.\., memory=policy.memory\(2\)\)"):
        policy.act(seen[:, 0])
    played = [by_hand(team, 2, "greedy") for _ in range(2)]
    assert played[0] == played[1]


def test_random_and_teams_play_each_agent_in_its_spaces_and_by_its_network(trained: Trained) -> None:
    team = mf.load(trained("qmix and ppo"))
    env = team.make_env()
    seen, infos = env.reset(seed=team.reset(seed=0))
    assert len({seen[agent].shape for agent in env.agents}) == 2, "two groups that observe differently"
    for policy in ("random", "team"):
        actions = {agent: team.act(agent, seen[agent], infos[agent], policy=policy) for agent in env.agents}
        assert all(env.action_space(agent).contains(action) for agent, action in actions.items())
    carts = mf.load(trained("ppo and dqn"))
    for agent in carts.agents:
        own, played = carts.player(agent), carts.player(agent, "team")
        assert np.array_equal(played.actor.flat(), own.actor.flat())  # type: ignore[attr-defined]
    assert not np.array_equal(*(carts[name].actor.flat()[:64] for name in ("hunters", "prey")))  # type: ignore[attr-defined]


# -- leagues ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def league(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("league") / "pfsp"
    mf.train(league_run(LEAGUES["pfsp"], 500), run_dir)
    return run_dir


def test_members_of_a_league_have_their_own_parameters(league: Path) -> None:
    team = mf.load(league)
    assert {"main", "main@1", "main@2"} <= set(team.policies)
    flats = {name: team[name].actor.flat() for name in ("main", "main@1", "main@2")}  # type: ignore[attr-defined]
    assert not np.array_equal(flats["main"], flats["main@1"])
    assert team["main@1"].about["version"] < team["main"].about["version"]
    env = team.make_env()
    seen, infos = env.reset(seed=team.reset(seed=0))
    assert team.player("player_0").name == "main", "the only policy that learns"
    for policy in ("main@1", "main", "random"):
        action = team.act("player_1", seen["player_1"], infos["player_1"], policy=policy)
        assert env.action_space("player_1").contains(action)


def test_where_seats_are_drawn_the_caller_says_who_plays(tmp_path: Path) -> None:
    experiment = small_run(env_steps=80, mapping=mf.RandomSeats(["hunters", "prey"]))
    mf.train(experiment, tmp_path / "run")
    team = mf.load(tmp_path / "run")
    seen, infos = team.make_env().reset(seed=team.reset())
    with pytest.raises(mf.ConfigInvalid, match=r"'cart_0' was played by hunters, prey in turn; say by whom: .*policy="):
        team.act("cart_0", seen["cart_0"], infos["cart_0"])
    assert team.act("cart_0", seen["cart_0"], infos["cart_0"], policy="prey") in (0, 1)


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_any_checkpoint_can_be_loaded_and_the_best_is_that_of_the_metric(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "checkpoint": mf.CheckpointConfig(every_env_steps=100, keep=9, best="policies.prey.return_mean"),
        "log": mf.Log(every_env_steps=100, console="none", tensorboard=False),
    }
    mf.train(small_run(env_steps=400, **changes), tmp_path / "run")
    manifests = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "run").glob("checkpoints/*/*.json")]
    rated = [one for one in manifests if one["metric"] is not None]
    best = max(rated, key=lambda one: (one["metric"], one["order"]))
    assert mf.load(tmp_path / "run", "best").checkpoint == best["env_steps"]
    assert mf.load(tmp_path / "run").checkpoint == max(one["env_steps"] for one in manifests)
    for one in manifests:
        assert mf.load(tmp_path / "run", one["env_steps"]).checkpoint == one["env_steps"]
    with pytest.raises(mf.CheckpointUnusable, match=r"checkpoint 7 in .* cannot be used: missing; others: \d+, "):
        mf.load(tmp_path / "run", 7)


def test_a_metric_without_a_value_has_no_best_checkpoint(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "checkpoint": mf.CheckpointConfig(every_env_steps=80, best="policies.prey.infos.fuel"),
        "metrics": {"fuel": mf.InfoMetric("fuell")},
        "evaluation": mf.Evaluation(every_env_steps=80, episodes=3),
    }
    mf.train(small_run(env_steps=160, **changes), tmp_path / "run")
    said = r"the best is not known: its checkpoint.best, policies.prey.infos.fuel, had no value at any of them; choose"
    with pytest.raises(mf.CheckpointUnusable, match=said):
        mf.load(tmp_path / "run", "best")


def test_without_that_metric_the_best_is_that_of_the_evaluations(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "policies": {"prey": mf.Policy(mf.DQN(learning_starts_agent_steps=50), mf.MLP((8,)))},
        "mapping": (mf.Rule("*", "prey"),),
        "checkpoint": mf.CheckpointConfig(every_env_steps=80, keep=9),
        "evaluation": mf.Evaluation(every_env_steps=80, episodes=3),
        "log": mf.Log(every_env_steps=80, console="none", tensorboard=False),
    }
    mf.train(small_run(env_steps=400, **changes), tmp_path / "run")
    reports = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    scores = {
        policy["eval_env_steps"]: policy["eval_return_mean"]
        for report in reports
        if (policy := report["policies"]["prey"])["eval_return_mean"] is not None
    }
    kept = {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()} & scores.keys()
    assert len(kept) > 1
    assert scores[mf.load(tmp_path / "run", "best").checkpoint] == max(scores[env_steps] for env_steps in kept)


def test_a_run_of_several_policies_without_a_metric_has_no_best_checkpoint(trained: Trained) -> None:
    with pytest.raises(mf.CheckpointUnusable, match=r"is the best is not known.*checkpoint.best.*\d+ \(the newest\)"):
        mf.load(trained("ppo and dqn"), "best")


# -- experiments ------------------------------------------------------------------------------------------------------


def test_an_experiment_that_cannot_be_built_again_is_passed(tmp_path: Path) -> None:
    local = replace(small_run(env_steps=80), env=mf.Env(lambda: carts(4, 50)))
    mf.train(local, tmp_path / "run")
    with pytest.raises(
        mf.ConfigInvalid, match=r"env is .*<lambda> of .*; write it in a module, or pass the experiment"
    ):
        mf.load(tmp_path / "run")
    team = mf.load(tmp_path / "run", experiment=local)
    seen, infos = team.make_env().reset(seed=team.reset())
    assert {team.act(agent, seen[agent], infos[agent]) for agent in team.agents} <= {0, 1}


@pytest.mark.slow
def test_modules_are_found_where_the_run_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    source = (
        "from marlflow.env.games.cartpole_team import parallel_env\n\ndef make(size):\n    return parallel_env(size)\n"
    )
    (project / "mine_to_load.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    small = small_run(env_steps=80)
    mf.train(replace(small, env=mf.Env("mine_to_load.make", {"size": 4}, num_envs=2)), tmp_path / "run")
    code = (
        f"import marlflow as mf; team = mf.load({str(tmp_path / 'run')!r}); print(len(team.make_env().possible_agents))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "4\n"), ran.stderr
    # Of somebody else, it is not imported unless it is trusted, and where it is, is not believed.
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text("utf-8").replace('"started_in": "', '"started_in": "/nowhere'), encoding="utf-8")
    with pytest.raises(mf.ConfigInvalid, match=r"='mine_to_load.make'; .* give trust=\['mine_to_load.make'\]"):
        mf.load(tmp_path / "run")
    assert len(mf.load(tmp_path / "run", trust=["mine_to_load.make"]).agents) == 4


# -- bad input --------------------------------------------------------------------------------------------------------


def no_checkpoints(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints")


def no_checkpoint(run_dir: Path) -> None:
    for path in (run_dir / "checkpoints").iterdir():
        shutil.rmtree(path)


def damaged(run_dir: Path) -> None:
    for path in (run_dir / "checkpoints").glob("*/driver.safetensors"):
        path.write_bytes(b"")


def unrecorded(run_dir: Path) -> None:
    (run_dir / "experiment.json").unlink()


def no_json(run_dir: Path) -> None:
    (run_dir / "experiment.json").write_text("{", encoding="utf-8")


def another_network(run_dir: Path) -> None:
    path = run_dir / "experiment.json"
    values = json.loads(path.read_text("utf-8"))
    values["policies"]["prey"]["model"]["hidden_sizes"] = [32]
    path.write_text(json.dumps(values), encoding="utf-8")


def misspelt(run_dir: Path) -> None:
    path = run_dir / "experiment.json"
    path.write_text(path.read_text("utf-8").replace('"stop"', '"stpo"'), encoding="utf-8")


def another_environment(run_dir: Path) -> None:
    path = run_dir / "experiment.json"
    values = json.loads(path.read_text("utf-8"))
    values["env"]["factory"] = "marlflow.env.games.pendulum_team.parallel_env"
    values["env"].pop("max_cycles")
    path.write_text(json.dumps(values), encoding="utf-8")


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no checkpoints": (no_checkpoints, r"has no checkpoints, so there is nothing to load; a run takes its first"),
    "no checkpoint": (no_checkpoint, r"there is no checkpoint in .*checkpoints"),
    "damaged": (damaged, r"driver.safetensors has 0 bytes.*"),
    "unrecorded": (unrecorded, r"has no experiment.json, the record of its experiment; pass the experiment itself"),
    "no json": (no_json, r"experiment.json cannot be read: .*; put it back"),
    "another network": (another_network, r"policies.prey.model was"),
    "misspelt": (misspelt, r"experiment.json: there is no stpo; did you mean 'stop'"),
    "another environment": (another_environment, r"Box\("),
}


@pytest.mark.parametrize("case", BAD)
def test_a_spoilt_run_is_one_clear_error(case: str, trained: Trained, tmp_path: Path) -> None:
    spoil, message = BAD[case]
    shutil.copytree(trained("ppo and dqn"), tmp_path / "run")
    spoil(tmp_path / "run")
    # A record that was changed is nobody's own; this factory imports a name that is given to it.
    trust = [
        "tests.trained.watched.make",
        *(f"marlflow.env.games.{name}_team.parallel_env" for name in ("cartpole", "pendulum")),
    ]
    with pytest.raises(mf.InvalidInput, match=message):
        mf.load(tmp_path / "run", trust=trust)


def test_a_folder_that_is_no_run_is_named(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"there is no directory .*nowhere; mf.load needs that of a run"):
        mf.load(tmp_path / "nowhere")
    run_dir = trained("ppo and dqn")
    with pytest.raises(mf.ConfigInvalid, match=r"did you mean .*/"):
        mf.load(run_dir.parent)


def test_what_a_team_cannot_do_is_said(trained: Trained, league: Path) -> None:
    team = mf.load(trained("ppo and dqn"))
    seen, infos = team.make_env().reset(seed=1)
    row, info = seen["cart_0"], infos["cart_0"]
    cases: dict[str, Callable[[], Any]] = {
        r"there is no agent 'crat_0'; did you mean 'cart_0'": lambda: team.act("crat_0", row, info),
        r"there is no agent 0; the agents are cart_0, cart_1": lambda: team.act(0, row, info),  # type: ignore[arg-type]
        r"there is no member 'pray'; did you mean 'prey'": lambda: team["pray"],
        r"'hunters' cannot play agent 'cart_3'; it can play cart_0, cart_1": lambda: team.act(
            "cart_3", row, info, policy="hunters"
        ),
        r"policy 'hunters', row 0: observation": lambda: team.act("cart_0", row[:2], info),
        r"mode must be one of as_learned, greedy, sampled, not 'greddy'": lambda: team.act(
            "cart_0", row, info, "greddy"
        ),  # type: ignore[arg-type]
        r"mode must be one of .*, not None": lambda: team["hunters"].act([row], mode=None),  # type: ignore[arg-type]
        r"there are 2 observations and 1 action masks": lambda: team["hunters"].act([row, row], [None]),
        r"main of .* observes .* and acts in .*, and agent 'cart_0' observes": lambda: team[f"{league}:main"],
        r"environment tests.trained.watched.make .*nonsense": lambda: team.make_env(nonsense=1),
    }
    for message, call in cases.items():
        with pytest.raises(mf.InvalidInput, match=message):
            call()
    masked = mf.load(trained("masks in observations"))
    board = np.zeros((6, 7, 2), np.int8)
    with pytest.raises(mf.InvalidInput, match=r"acts by action masks: give agent 'player_0' its whole observation, if"):
        masked.act("player_0", board)
    recurrent = mf.load(trained("memory"))["prey"]
    rows = np.zeros((2, *recurrent.spaces.obs_shape), np.float32)
    for memory in (recurrent.memory(3), np.asarray(recurrent.memory(2), np.float64)):
        with pytest.raises(mf.InvalidInput, match=r"memory of 2 rows is float32 \[2, .*\], not float(32|64) \["):
            recurrent.act(rows, memory=memory)


def test_a_team_outlives_the_checkpoint_that_it_was_loaded_from(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained("ppo and dqn"), run)
    team, whole = mf.load(run), mf.load(trained("ppo and dqn"))
    shutil.rmtree(run / "checkpoints")
    row = np.zeros((1, *team["prey"].spaces.obs_shape), np.float32)
    for name in ("prey", "hunters"):
        assert team[name].act(row, mode="greedy") == whole[name].act(row, mode="greedy")


def test_the_newest_checkpoint_is_the_one_that_is_loaded(trained: Trained) -> None:
    run_dir = trained("ppo and dqn")
    assert mf.load(run_dir).checkpoint == newest(run_dir).env_steps


@pytest.mark.parametrize("wraps_lists", [True, False])
def test_a_run_whose_model_had_lists_is_loaded(tmp_path: Path, wraps_lists: bool) -> None:
    sizes: Any = [16, np.int64(8)] if wraps_lists else (16, 8)
    model = mf.MLP(hidden_sizes=sizes)
    mf.train(small_run(policies={"hunters": mf.Policy(SMALL_PPO, model), "prey": mf.Policy()}), tmp_path)
    team = mf.load(tmp_path)
    seen, infos = team.make_env().reset(seed=team.reset(seed=0))
    for agent, one in seen.items():
        team.act(agent, one, infos[agent])


def test_a_batched_environment_is_made_as_pettingzoos(tmp_path: Path) -> None:
    game = mf.Env("functional", {"make": HotPotato, "max_env_steps": 9}, num_envs=2)
    mf.train(small_run(env=game, policies={"player": mf.Policy(SMALL_PPO, SMALL)}, mapping=None), tmp_path)
    team = mf.load(tmp_path)
    env = team.make_env()
    assert isinstance(env, AECEnv)
    env.reset(seed=team.reset(seed=0))
    for agent in env.agent_iter(9):
        observation, _, terminated, truncated, info = env.last()
        env.step(None if terminated or truncated else team.act(agent, observation, info))
