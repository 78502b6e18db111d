"""`marlflow evaluate`: its output and files, and one clear error for whatever is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tests.cli.conftest import Marlflow, table, trained_in
from tests.cli.spoiled import (
    Spoilt,
    assert_refused_untouched,
    cut_off,
    nothing,
    without_any_checkpoint,
    without_checkpoints,
)
from tests.cli.test_league import TRAINED

USAGE = "marlflow evaluate RUN [RUN ...] [name=value ...]"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run with a league, an exported member of it, and a run without a league."""
    plain = [word for word in TRAINED if not word.startswith(("league", "hydra", "stop"))]
    return trained_in(
        tmp_path_factory.mktemp("trained"),
        ["train", *TRAINED],
        ["league", "trained", "--export", "player@1", "first.safetensors"],
        ["train", *plain, "hydra.run.dir=plain", "stop.env_steps=50"],
    )


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy of these in the folder that commands are given in."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.usefixtures("runs")
def test_it_prints_a_table_and_writes_every_game(marlflow: Marlflow, tmp_path: Path) -> None:
    words = ["--members", "player,player@2", "--against", "random,trained:player@1,first.safetensors", "--games=12"]
    said = marlflow("evaluate", "trained", *words)
    assert (said.code, said.err) == (0, "")
    titles, *rows, note, wrote = said.out.splitlines()
    assert note.startswith("all policies sample their actions; intervals are over games")
    assert titles.split()[:7] == ["member", "opponent", "games", "win", "draw", "loss", "return"]
    assert titles.endswith("win as player_0  win as player_1")
    opponents = ["random", "trained:player@1", "first.safetensors"]
    assert [row.split()[:3] for row in rows] == [[m, o, "12"] for m in ("player", "player@2") for o in opponents]
    assert wrote == "wrote evaluations/1.json, matrix.csv into trained"
    data = json.loads((tmp_path / "trained" / "evaluations" / "1.json").read_text(encoding="utf-8"))
    assert len(data["games"]) == 72
    assert data["members"]["trained:player@1"]["sha256"] == data["members"]["first.safetensors"]["sha256"]
    matrix = [row for row in table(tmp_path / "trained" / "matrix.csv") if not row["side"]]
    for row, result in zip(matrix, data["results"], strict=True):
        assert (row["member"], row["opponent"]) == (result["member"], result["opponent"])
        assert float(row["win"]) + float(row["draw"]) + float(row["loss"]) == pytest.approx(1.0)
        assert float(row["return_low"]) == result["return"]["low"]


@pytest.mark.usefixtures("runs")
def test_the_same_command_gives_the_same_bytes_and_json_alone_on_standard_output(
    marlflow: Marlflow, tmp_path: Path
) -> None:
    said = [marlflow("evaluate", "trained", "--games", "10", "--seed=4", "--json") for _ in range(2)]
    assert [one.code for one in said] == [0, 0]
    printed = [json.loads(one.out) for one in said]
    assert [(one["member"], one["opponent"], one["games"]) for one in printed[0]["results"]] == [
        ("player", "random", 10)
    ]
    assert "games" not in printed[0]
    assert said[0].err == "wrote evaluations/1.json, matrix.csv into trained\n"
    times = {"duration_s": 0, "ended_s": 0}
    assert printed[0] | times == printed[1] | times
    assert printed[0]["ended_s"] < printed[1]["ended_s"]
    files = [tmp_path / "trained" / "evaluations" / f"{number}.json" for number in (1, 2)]
    timeless = [[line for line in file.read_text("utf-8").splitlines() if '_s":' not in line] for file in files]
    assert timeless[0] == timeless[1]
    assert len(timeless[0]) == len(files[0].read_text("utf-8").splitlines()) - 2


@pytest.mark.usefixtures("runs")
def test_several_runs_are_evaluated_each_in_its_environment(marlflow: Marlflow, tmp_path: Path) -> None:
    said = marlflow("evaluate", "plain", "trained", "episodes=4", "mode=sampled", "units=sum")
    assert (said.code, said.err) == (0, "")
    titles, policy, _, member, *notes = said.out.splitlines()
    assert titles.split()[:3] == ["run", "policy", "episodes"]
    assert "  episodes  return, sum over agents [95 %]  " in titles
    assert policy.split()[:3] == ["plain", "player", "4"]
    assert member.split()[:4] == ["trained", "player", "random", "4"]
    limits = "and say nothing about other training seeds"
    assert f"plain: all policies sample their actions; intervals are over episodes, {limits}" in notes
    assert f"trained: all policies sample their actions; intervals are over games, {limits}" in notes
    assert notes[-2:] == ["wrote evaluations/1.json into plain", "wrote evaluations/1.json, matrix.csv into trained"]
    said = marlflow("evaluate", "plain", "trained", "episodes=4", "--json")
    assert json.loads(said.out).keys() == {"plain", "trained"}


@pytest.mark.usefixtures("runs")
def test_another_environment_is_chosen_by_its_name(marlflow: Marlflow, tmp_path: Path) -> None:
    said = marlflow("evaluate", "plain", "env=connect_four", "env.batched=false", "episodes=4")
    assert (said.code, said.err) == (0, "")
    assert "in another environment: env._target_=" in said.out
    assert ", env.id=classic/connect_four-v3" in said.out
    written = json.loads((tmp_path / "plain" / "evaluations" / "1.json").read_text("utf-8"))
    assert written["env"]["batched"] is False


@pytest.mark.usefixtures("runs")
def test_another_environment_of_a_users_own_is_chosen_by_its_import_path(
    marlflow: Marlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_four.py").write_text(
        "from pettingzoo.classic import connect_four_v3\n\n\n"
        "def make_env(screen_scaling=9):\n    assert screen_scaling == 5\n    return connect_four_v3.env()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = ["plain", "env=my_four.make_env", "episodes=4"]
    said = marlflow("evaluate", *chosen, "env.screen_scaling=5")
    assert (said.code, said.err) == (0, "")
    assert "in another environment: env._target_=my_four.make_env, env.screen_scaling=5" in said.out
    said = marlflow("evaluate", *chosen, "env.screen_size=5")
    assert said.code == 2
    assert "screen_size" in said.err


def test_what_comes_with_marlflow_is_evaluated_in_a_copy(
    marlflow: Marlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lbforaging")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = marlflow("evaluate", "gallery:lbf_10x10_3p_3f_ppo", "env.batched=false", "episodes=2")
    assert said.code == 0, said.err
    (copy,) = tmp_path.glob("marlflow/gallery/*/lbf_10x10_3p_3f_ppo")
    assert said.out.splitlines()[-1] == f"wrote evaluations/1.json into {copy}"


@pytest.mark.usefixtures("runs")
def test_a_run_without_a_league_plays_by_its_policies(marlflow: Marlflow) -> None:
    said = marlflow("evaluate", "plain", "--against", "player,trained:player,random", "--games", "4")
    assert said.code == 0, said.err
    opponents = [row.split()[1] for row in said.out.splitlines()[1:-2]]
    assert opponents == ["player", "trained:player", "random"]


@pytest.mark.usefixtures("runs")
def test_an_import_of_a_league_is_planned_trained_and_evaluated(marlflow: Marlflow, tmp_path: Path) -> None:
    members = ("+league.members.veteran={from: trained, member: player@2}", "league.members.dice={policy: random}")
    words = [word for word in TRAINED if not word.startswith(("hydra", "stop"))]
    said = marlflow("plan", *words, *members)
    assert said.code == 0, said.err
    (line,) = (line for line in said.out.splitlines() if line.startswith("member veteran: "))
    assert line.startswith("member veteran: player@2 of trained (ppo, version 0, 743 parameters, SHA-256 ")
    assert marlflow("train", *words, *members, "hydra.run.dir=second", "stop.env_steps=50").code == 0
    shutil.rmtree(tmp_path / "trained")
    said = marlflow("evaluate", "second", "--members", "player", "--against", "veteran,dice", "--games", "2", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["members"]["veteran"]["sha256"] in line
    assert marlflow("league", "second", "--export", "veteran", "veteran.safetensors").code == 0
    with safe_open(tmp_path / "veteran.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["member"])["member"] == "player@2"


# -- bad input ------------------------------------------------------------------------------------------------------


def unrecorded(run: Path) -> None:
    (run / "experiment.json").unlink()


def changed(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = run / "experiment.json"
    values = json.loads(path.read_text("utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def of_somebody_else(run: Path) -> None:
    changed(run, lambda values: values["env"].update({"_target_": "evil.make"}))


def with_another_environment(run: Path) -> None:
    rps = {"_target_": "marlflow.env.simulators.pettingzoo_registry.make", "id": "classic/rps-v2"}
    changed(run.parent / "plain", lambda values: values.update({"env": rps}))


CASES: dict[str, Spoilt] = {
    "no directory": (nothing, [], [f"evaluate needs RUN: {USAGE}"]),
    "not there": (nothing, ["nowhere"], ["there is no directory nowhere; evaluate needs that of a run"]),
    "what it is in": (nothing, ["."], [". is not the directory of a run", " (did you mean "]),
    "no checkpoints": (without_checkpoints, ["trained"], ["trained has no checkpoints, so there is nothing"]),
    "no checkpoint": (without_any_checkpoint, ["trained"], ["there is no checkpoint in "]),
    "truncated": (cut_off("driver.safetensors"), ["trained"], ["driver.safetensors has", "checkpoints is whole"]),
    "unrecorded": (unrecorded, ["trained"], ["has no experiment.json, the record of its experiment"]),
    "of somebody else": (of_somebody_else, ["trained"], ["evil.make", "on the command line --trust"]),
    "another environment": (
        with_another_environment,
        ["plain"],
        ["policies.player.acts was 'Discrete(7)' when it was kept, and is 'Discrete(3)'"],
    ),
    "games": (nothing, ["trained", "--games", "0"], ["episodes must be a whole number of at least 1, not 0"]),
    "many games": (nothing, ["trained", "--games", "many"], ["episodes must be a whole number, not 'many'"]),
    "checkpoint": (
        nothing,
        ["trained", "checkpoint=newest"],
        ["checkpoint must be best, or the env steps of a checkpoint"],
    ),
    "no such checkpoint": (nothing, ["trained", "checkpoint=7"], ["checkpoint 7 in ", "cannot be used: missing"]),
    "mode": (
        nothing,
        ["trained", "mode=gredy"],
        ["mode must be one of as_learned, greedy, sampled", "did you mean 'greedy'"],
    ),
    "no value": (nothing, ["trained", "--games"], ["episodes needs a value: episodes=N"]),
    "names": (nothing, ["trained", "--members", "player,,"], ["members needs values with commas between them"]),
    "unknown member": (
        nothing,
        ["trained", "--members", "plyer"],
        ["there is no member 'plyer'; did you mean 'player'?"],
    ),
    "no mixture": (
        nothing,
        ["trained", "--members", "mixture"],
        ["has no meta-strategy; a run with league=psro has one"],
    ),
    "other environment": (nothing, ["plain", "env=conect_four"], ["no environment 'conect_four'; did you mean"]),
    "one of a user's own": (nothing, ["plain", "env=my_hand"], ["one of your own is package.module.name"]),
    "its setting": (
        nothing,
        ["plain", "env=rps", "env.max_cycle=3"],
        ["has no argument 'max_cycle'; did you mean"],
    ),
    "its wrappers": (nothing, ["plain", "env=rps", "env.wrappers=[]"], ["takes over the run's"]),
    "one that is unlike": (nothing, ["plain", "env=rps"], ["policies.player.acts was 'Discrete(7)'"]),
    "flag": (nothing, ["trained", "--gamse", "3"], ["marlflow evaluate has no option 'gamse'; did you mean 'games'?"]),
    "flag of another": (nothing, ["trained", "--export"], ["no option 'export'; it is an option of marlflow league"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_one_clear_error_and_touches_nothing(case: Spoilt, marlflow: Marlflow, runs: Path) -> None:
    assert_refused_untouched(marlflow, "evaluate", case, runs / "trained")


@pytest.mark.usefixtures("runs")
def test_a_folder_that_cannot_be_written_to_is_said_after_the_table(marlflow: Marlflow, tmp_path: Path) -> None:
    (tmp_path / "trained" / "evaluations").write_text("not a folder", encoding="utf-8")
    said = marlflow("evaluate", "trained", "--games", "2")
    assert said.code == 2
    assert "random" in said.out
    assert "trained cannot be written to: " in said.err
