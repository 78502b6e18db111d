"""Import paths of before, in what runs and data sets recorded."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

import marlflow as mf
from marlflow.base.public_names import current_name, with_current_names
from marlflow.config.construct import imported
from marlflow.config.recorded import recorded_run
from marlflow.env import make_environment
from marlflow.env.make import Wrapper
from marlflow.env.wrappers.shipped import last_action
from marlflow.runs.checkpoint_format import _canonical_hash

BEFORE = [
    *(f"marlflow.env.{name}.parallel_env" for name in ("cartpole_team", "cliff", "gridworld", "lbf", "rware", "toll")),
    *(f"marlflow.env.{name}.parallel_env" for name in ("cartpole_family", "gymnasium_team", "matrix_games", "recall")),
    *(f"marlflow.env.{name}.parallel_env" for name in ("guess_number", "pendulum_team", "relay", "sacrifice", "sign")),
    *("marlflow.env.openspiel.env", "marlflow.env.token_signal.env", "marlflow.env.pettingzoo_registry.make"),
    *("marlflow.env.managed.managed", "marlflow.env.shield.shield", "marlflow.env.automaton_task.automaton"),
    *("marlflow.env.cliff.stays_up", "marlflow.env.gridworld.labels", "marlflow.env.sign.reached"),
    *(f"marlflow.env.wrappers.{name}" for name in ("gray", "joint_state", "reward_scale", "last_action", "resize")),
    *(f"marlflow.env.wrappers.{name}" for name in ("black_death", "pad_actions", "random_opening", "mask_in_info")),
    "marlflow.sampling.matchmaking.RandomSeats",
]


def found(path: str) -> bool:
    module, _, name = path.rpartition(".")
    try:
        return callable(getattr(importlib.import_module(module), name, None))
    except ImportError:
        return False


@pytest.mark.parametrize("path", BEFORE)
def test_a_path_of_before_leads_to_a_part_and_is_refused_with_its_new_name(path: str) -> None:
    assert not found(path)
    assert found(current_name(path))
    problems: list[str] = []
    imported(path, "env", problems)
    public = path.rpartition(".")[2] in mf.__all__
    remedy = f"did you mean {path.rpartition('.')[2]}?" if public else f"it has become {current_name(path)}"
    assert problems[0].replace("marlflow.RandomSeats", "RandomSeats").endswith(f"; {remedy}")


@pytest.mark.parametrize("path", BEFORE)
def test_a_path_of_now_stays_as_it_is(path: str) -> None:
    assert current_name(current_name(path)) == current_name(path)


def test_other_texts_stay_as_they_are() -> None:
    values = {"env": ["marlflow.env.lbfs.parallel_env", "my.marlflow.env.lbf.make", 3, None, {"marlflow.env.lbf": 1.5}]}
    assert with_current_names(values) == values


def test_a_recorded_run_is_read_with_the_paths_of_now(tmp_path: Path) -> None:
    wrapper = {"_target_": "marlflow.env.wrappers.gray", "mode": "full"}
    env = {"_target_": "marlflow.env.lbf.parallel_env", "wrappers": [wrapper]}
    (tmp_path / "experiment.json").write_text(json.dumps({"env": env}), encoding="utf-8")
    read = recorded_run(tmp_path).values["env"]
    assert read["_target_"] == "marlflow.env.simulators.lbf.parallel_env"
    assert read["wrappers"] == [{"_target_": "marlflow.env.wrappers.shipped.gray", "mode": "full"}]


def test_an_environment_of_before_is_refused_with_its_new_name() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"it has become marlflow\.env\.games\.toll\.parallel_env"):
        make_environment("marlflow.env.toll.parallel_env", {})


def test_a_public_class_is_found_by_its_name_wherever_its_module_was() -> None:
    assert current_name("marlflow.league.snapshots.SnapshotRules") == "marlflow.league.league.SnapshotRules"
    assert current_name("marlflow.league.PFSP") == "marlflow.league.modes.PFSP"
    assert current_name("marlflow.league.snapshots.Unknown") == "marlflow.league.snapshots.Unknown"


def test_paths_in_texts_are_those_of_now() -> None:
    text = "marlflow.env.shield.shield(safe='marlflow.env.cliff.stays_up')"
    now = "marlflow.env.wrappers.shield.shield(safe='marlflow.env.games.cliff.stays_up')"
    assert with_current_names({"env": [text]}) == {"env": [now]}


def test_a_run_of_before_is_resumed(tmp_path: Path) -> None:
    run = mf.Experiment(
        mf.Env(
            "marlflow.env.games.toll.parallel_env",
            wrappers=[Wrapper("marlflow.env.wrappers.shipped.last_action", last_action, {})],
        ),
        {"driver": mf.Policy(mf.PPO(batch_agent_steps=64, minibatch_agent_steps=32))},
        [mf.Rule("*", "driver")],
        stop=mf.Stop(200),
        runtime=mf.RuntimeConfig("inline"),
        evaluation=mf.Evaluation(episodes=0),
    )
    mf.train(run, run_dir=tmp_path)
    for checkpoint in (tmp_path / "checkpoints").glob("*/checkpoint.json"):
        text = checkpoint.read_text(encoding="utf-8")
        for now, before in (("env.games.toll", "env.toll"), ("env.wrappers.shipped.last", "env.wrappers.last")):
            assert now in text
            text = text.replace(now, before)
        manifest = json.loads(text)
        del manifest["sha256"]
        checkpoint.write_text(json.dumps({**manifest, "sha256": _canonical_hash(manifest)}), encoding="utf-8")
    assert mf.resume(replace(run, stop=mf.Stop(300)), tmp_path).metrics["env_steps"] >= 300
