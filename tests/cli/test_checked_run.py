"""What is wrong with a run's folder, a checkpoint or a name is found before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marlflow.base.errors import InvalidInput
from marlflow.cli.run_folder import checked_run
from marlflow.runs.checkpoint_format import Notes
from marlflow.runs.checkpoints import CheckpointStore

IDENTITY: dict[str, Any] = {"env": {"agents": ["player_1", "player_2"]}, "policies": {"main": {"algorithm": "ppo"}}}


def write(run: Path, *files: str, **changed: Any) -> Path:
    notes = Notes("0123456789abcdef", {**IDENTITY, **changed}, "rows", 0)
    for env_steps in (100, 200):
        contents = dict.fromkeys(("driver", *files), b"x")
        CheckpointStore(run / "checkpoints", keep=2).write(env_steps, contents, [], notes.as_json(), None)
    return run


@pytest.mark.parametrize("label", ["main", "main@1", "random", "team", "mixture", "other:main", "main12.safetensors"])
def test_everybody_who_may_be_there_passes(tmp_path: Path, label: str) -> None:
    run = write(tmp_path / "run", "frozen.main@1")
    assert checked_run(str(run), "evaluate", None, [label], "player_2", ["player_1"]) == run


def test_a_folder_in_place_of_a_name_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run")
    (tmp_path / "rival").mkdir()
    assert checked_run("run", "evaluate", "best", ["rival"]) == Path("run")


def test_every_unknown_name_is_said_with_the_nearest(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    with pytest.raises(InvalidInput) as refused:
        checked_run(str(run), "play", 100, ["mian", "rndom"], "player_3", ["player1"])
    assert list(refused.value.problems) == [
        "there is no member 'mian'; did you mean 'main'?",
        "there is no member 'rndom'; did you mean 'random'?",
        "seats: there is no agent 'player1'; did you mean 'player_1'?",
        "there is no agent 'player_3' to play as; did you mean 'player_2'?",
    ]


@pytest.mark.parametrize("changed", [{"league": {}}, {"policies": None}])
def test_members_of_a_league_are_not_known_here(tmp_path: Path, changed: dict[str, Any]) -> None:
    run = write(tmp_path / "run", **changed)
    assert checked_run(str(run), "evaluate", None, ["main@7"]) == run


def test_policies_of_the_experiment_alone_are_known(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    (run / "experiment.json").write_text('{"policies": {"main": {}, "one_ply": {}}}', encoding="utf-8")
    assert checked_run(str(run), "evaluate", None, ["one_ply"]) == run
    with pytest.raises(InvalidInput, match="there are main, one_ply, random, team"):
        checked_run(str(run), "evaluate", None, ["zzz"])
    (run / "experiment.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InvalidInput, match="there are main, random, team"):
        checked_run(str(run), "evaluate", None, ["zzz"])


@pytest.mark.parametrize("env", [None, {}, {"agents": []}, {"agents": 3}])
def test_agents_that_are_not_declared_are_not_checked(tmp_path: Path, env: Any) -> None:
    run = write(tmp_path / "run", env=env)
    assert checked_run(str(run), "play", None, [], "anybody") == run


def test_a_checkpoint_that_is_not_there_is_an_error_and_a_damaged_one_is_left_to_its_reader(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    (run / "checkpoints" / "200" / "driver.safetensors").write_bytes(b"y")
    assert checked_run(str(run), "play", None) == run
    with pytest.raises(InvalidInput, match=r"checkpoint 300 in .* cannot be used: missing; others: "):
        checked_run(str(run), "play", 300)


def test_bad_input_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "run")
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    program = """
import sys
for name in ("torch", "ray", "pettingzoo", "gymnasium"):
    sys.modules[name] = None
from marlflow.cli.main import main
for words in sys.argv[1:]:
    assert main(words.split()) == 2, words
"""
    commands = [
        f"{command} {rest}"
        for command in ("play", "export", "evaluate", "report")
        for rest in ("nowhere", "empty", *(["run checkpoint=7"] if command != "report" else []))
    ]
    commands += ["evaluate run members=mian", "evaluate run against=rndom", "export run policy=mian"]
    commands += ["play run as=player_3", "play run against=mian", "play run seats=player_1:mian", "play run seats=x"]
    done = subprocess.run(
        [sys.executable, "-c", program, *commands], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: ") == len(commands)
    assert "Traceback" not in done.stderr
