"""`marlflow league`: standings, files and exports of a run's league, and one clear error for whatever is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors import safe_open

from marlflow.cli.league import _title
from marlflow.league.payoffs import Payoffs
from tests.cli.conftest import Marlflow, content
from tests.cli.spoiled import (
    Spoilt,
    assert_refused_untouched,
    cut_off,
    nothing,
    without_any_checkpoint,
    without_checkpoints,
)
from tests.cli.test_train import SHORT
from tests.driver.watching import reports
from tests.league.population import PAIR, add_games
from tests.league.saved import FLAT, played, state_of, write_checkpoint, write_league

HYDRA = "hydra: {runtime: {choices: {env: connect_four, league: pfsp}}}\n"
CONFIG = """\
policies:
  main:
    algorithm: {_target_: marlflow.PPO, learning_rate: 1e-3}
    model: {_target_: marlflow.MLP, hidden_sizes: [8]}
default_policy: {algorithm: {_target_: marlflow.DQN}}
secret: ${oc.env:HOME}
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a league, which was started from the command line."""
    write_league(tmp_path / "run")
    (tmp_path / "run" / ".hydra").mkdir()
    (tmp_path / "run" / ".hydra" / "hydra.yaml").write_text(HYDRA, encoding="utf-8")
    (tmp_path / "run" / ".hydra" / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path / "run"


def test_it_prints_standings_and_writes_files(marlflow: Marlflow, run: Path) -> None:
    said = marlflow("league", "run")
    assert (said.code, said.err) == (0, "")
    first, titles, *rows, missing, last = said.out.splitlines()
    assert missing == "no ratings: no matches were played; league.matches.every_env_steps says when they are"
    assert first == "connect_four  pfsp  epoch 2   360 games, 0 matches; results are of training, exploration included"
    words = "# member by rating games win draw loss seat 1 seat 2 nash since"
    assert titles.split() == words.split()
    assert [row.split()[:2] for row in rows] == [["1", "main"], ["2", "main@2"], ["3", "main@1"], ["4", "random"]]
    assert rows[0].split()[2] == "ppo"
    assert rows[0].endswith("live, version 30")
    assert rows[1].endswith("1,800 agent steps, from main")
    assert rows[3].split()[3].startswith("+0.0±")
    assert last == "wrote payoffs.parquet, payoff.png, ratings.png into run/league"
    assert sorted(path.name for path in (run / "league").iterdir()) == ["payoff.png", "payoffs.parquet", "ratings.png"]
    table = pq.read_table(run / "league" / "payoffs.parquet").to_pylist()
    assert sum(row["games"] for row in table) == 360
    for name in ("payoff.png", "ratings.png"):
        with Image.open(run / "league" / name) as image:
            image.verify()


def test_matches_are_shown_if_there_were_any(marlflow: Marlflow, tmp_path: Path) -> None:
    matches = Payoffs(PAIR)
    add_games(matches, "main@1", "main", wins=7, losses=0)
    write_league(tmp_path / "plain", matches)
    said = marlflow("league", "plain")
    first, _, *rows = said.out.splitlines()
    assert first == "plain  epoch 2   360 games, 7 matches", "a run from Python has the name of its folder"
    by_member = {row.split()[1]: row.split() for row in rows[:4]}
    assert by_member["main@1"][4:6] == ["7", "1.00"]
    assert by_member["random"][4:6] == ["0", "-"]
    assert "no nash: 6 of 6 pairs of members have no games in both seatings" in rows
    tables = pq.read_table(tmp_path / "plain" / "league" / "payoffs.parquet").column("table").to_pylist()
    assert tables.count("match") == 1


def test_it_may_be_given_again_and_while_the_run_goes_on(marlflow: Marlflow, run: Path) -> None:
    assert marlflow("league", "run").code == 0
    before = content(run / "checkpoints")
    assert marlflow("league", str(run)).code == 0
    assert content(run / "checkpoints") == before
    write_checkpoint(run, None, env_steps=9_000)
    assert "has no league" in marlflow("league", "run").err, "the newest checkpoint is read"


TRAINED = (
    "env=connect_four",
    "league=pfsp",
    "league.snapshots.every_agent_steps=500",
    "runtime=inline",
    "stop.env_steps=2000",
    "env.num_envs=4",
    "evaluation.episodes=0",
    "model@default_policy.model=mlp",
    "default_policy.model.hidden_sizes=[8]",
    "log.console=plain",
    "hydra.run.dir=trained",
)


def test_a_league_that_was_trained(marlflow: Marlflow, tmp_path: Path) -> None:
    trained = marlflow("train", *TRAINED)
    assert trained.code == 0, trained.err
    said = marlflow("league", "trained")
    assert (said.code, said.err) == (0, "")
    first, _, *rows, note, missing, wrote = said.out.splitlines()
    assert missing.startswith(
        "no ratings: the first matches come before the first round after 2,000 env steps (league.m"
    )
    assert missing.endswith("set it lower: marlflow resume trained league.matches.every_env_steps=470")
    assert re.fullmatch(r"connect_four  pfsp  epoch \d+   \d+ games, 0 matches; results are of training, .*", first)
    members = [row.split()[1] for row in rows]
    assert {"player", "player@1", "player@2"} <= set(members)
    live = next(row.split() for row in rows if row.split()[1] == "player")
    assert (live[2], live[3]) == ("ppo", "-"), "no rating without matches"
    assert int(live[4]) > 20
    assert "pairs of members have no games in both seatings" in note
    assert wrote == "wrote payoffs.parquet, payoff.png into trained/league"
    assert marlflow("league", "trained", "--export", "player@2", "second.safetensors").code == 0
    flat, about = exported(tmp_path / "second.safetensors")
    assert np.isfinite(flat).all()
    assert about["algorithm"] == "ppo"
    assert about["config"]["model"]["hidden_sizes"] == [8]
    assert about["roles"] == ["player_0", "player_1"]


# -- export ---------------------------------------------------------------------------------------------------------


def exported(path: Path) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    with safe_open(path, "numpy") as file:
        assert list(file.keys()) == ["flat"]
        metadata = file.metadata()
        assert metadata["format"] == "marlflow member 1"
        return file.get_tensor("flat"), json.loads(metadata["member"])


def test_an_export_has_parameters_and_plain_data(marlflow: Marlflow, run: Path, tmp_path: Path) -> None:
    said = marlflow("league", "run", "--export", "main@2", "second.safetensors")
    assert (said.code, said.err) == (0, "")
    assert said.out == "wrote main@2 (version 20 of main, 6 parameters) to second.safetensors\n"
    flat, about = exported(tmp_path / "second.safetensors")
    np.testing.assert_array_equal(flat, FLAT + 2)
    assert (about["member"], about["policy"], about["version"], about["env_steps"]) == ("main@2", "main", 20, 2_000)
    assert about["config"] == {
        "algorithm": {"_target_": "marlflow.PPO", "learning_rate": 1e-3},
        "model": {"_target_": "marlflow.MLP", "hidden_sizes": [8]},
    }
    assert not (run / "league").exists()
    assert marlflow("league", "--export", "main", "live.safetensors", "run").code == 0
    np.testing.assert_array_equal(exported(tmp_path / "live.safetensors")[0], FLAT)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("policies: {other: {}}\ndefault_policy: {algorithm: a, stop: b}\n", {"algorithm": "a"}),
        ("policies: {main: '${oc.env:HOME}'}\n", None),
        ("- a\n- list\n", None),
        ("a: [", None),
        (None, None),
    ],
)
def test_the_configuration_of_an_export_is_what_the_run_recorded(
    config: str | None, expected: Any, marlflow: Marlflow, run: Path, tmp_path: Path
) -> None:
    path = run / ".hydra" / "config.yaml"
    path.unlink() if config is None else path.write_text(config, encoding="utf-8")
    assert marlflow("league", "run", "--export", "main@1", "first.safetensors").code == 0
    assert exported(tmp_path / "first.safetensors")[1]["config"] == expected


# -- bad input ------------------------------------------------------------------------------------------------------


def without_league(run: Path) -> None:
    write_checkpoint(run, None, env_steps=9_000)


def malformed(run: Path) -> None:
    write_checkpoint(run, {"matchmaker": {"members": {}, "payoffs": {}, "ratings": {}}}, env_steps=9_000)


def with_file(run: Path) -> None:
    (run.parent / "there.safetensors").write_text("mine", encoding="utf-8")


def with_link(run: Path) -> None:
    (run.parent / "there.safetensors").symlink_to("nowhere")


def with_league_file(run: Path) -> None:
    (run / "league").write_text("not a folder", encoding="utf-8")


USAGE = "marlflow league RUN [name=value ...]"
CASES: dict[str, Spoilt] = {
    "no directory": (nothing, [], [f"league needs RUN: {USAGE}"]),
    "not there": (nothing, ["nowhere"], ["there is no directory nowhere; league needs that of a run"]),
    "a setting": (
        nothing,
        ["run", "seed=1"],
        ["marlflow league has no option 'seed'; it is an option of marlflow evaluate"],
    ),
    "what it is in": (nothing, ["."], [". is not the directory of a run", " (did you mean ", "/run?)"]),
    "no checkpoints": (without_checkpoints, ["run"], ["run has no checkpoints, so there is nothing to show"]),
    "no checkpoint": (without_any_checkpoint, ["run"], ["there is no checkpoint in run/checkpoints"]),
    "no league": (without_league, ["run"], ["run has no league", "marlflow train env=connect_four league=pfsp"]),
    "truncated": (
        cut_off("driver.safetensors"),
        ["run"],
        ["driver.safetensors has", "none in run/checkpoints is whole"],
    ),
    "malformed": (malformed, ["run"], ["run/checkpoints/9000 cannot be used", "remove it"]),
    "flag": (nothing, ["run", "--exprt"], ["marlflow league has no option 'exprt'; did you mean 'export'?"]),
    "flag of another": (nothing, ["run", "--mermaid"], ["no option 'mermaid'; it is an option of marlflow plan"]),
    "export alone": (nothing, ["run", "--export"], ["export needs 2 values, MEMBER FILE: export=MEMBER,FILE"]),
    "export without file": (nothing, ["run", "--export", "main"], ["export needs 2 values, MEMBER FILE"]),
    "unknown member": (
        nothing,
        ["run", "--export", "main@12", "f"],
        ["the league of run has no member 'main@12'; did you mean 'main@2'?"],
    ),
    "scripted member": (nothing, ["run", "--export", "random", "f"], ["member 'random' never learned"]),
    "file is there": (
        with_file,
        ["run", "--export", "main", "there.safetensors"],
        ["there.safetensors is there already, and export replaces nothing"],
    ),
    "link is there": (with_link, ["run", "--export", "main", "there.safetensors"], ["is there already"]),
    "no folder for the file": (
        nothing,
        ["run", "--export", "main", "no/where.safetensors"],
        ["there is no directory no to write where.safetensors to"],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_one_clear_error_and_touches_nothing(case: Spoilt, marlflow: Marlflow, run: Path) -> None:
    assert_refused_untouched(marlflow, "league", case, run)


def test_a_folder_that_cannot_be_written_to_is_said_after_the_standings(marlflow: Marlflow, run: Path) -> None:
    with_league_file(run)
    said = marlflow("league", "run")
    assert said.code == 2
    assert "main@2" in said.out
    assert said.err.startswith("error: run/league cannot be written to: ")


def test_numbers_that_cannot_be_drawn_name_the_checkpoint(marlflow: Marlflow, run: Path) -> None:
    write_checkpoint(run, {"matchmaker": {**state_of(played()), "env_steps": 10**400}}, env_steps=9_000)
    said = marlflow("league", "run")
    assert said.code == 2
    assert said.err.startswith("error: run/checkpoints/9000 cannot be used")


def test_another_command_says_whose_flag_export_is(marlflow: Marlflow) -> None:
    assert "it is an option of marlflow league" in marlflow("resume", "run", "--export").err


def test_reading_a_league_imports_nothing_of_the_run(marlflow: Marlflow, run: Path, tmp_path: Path) -> None:
    (run / ".hydra" / "config.yaml").write_text("policies: {main: {_target_: evil.Policy}}\n", encoding="utf-8")
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    said = marlflow("league", "run", "--export", "main", "live.safetensors")
    assert (said.code, said.err) == (0, "")
    assert "evil" not in sys.modules


COMMANDS = """
import contextlib, io, json, sys
from pathlib import Path
from marlflow.cli.main import main

for words, recorded in json.loads(sys.argv[1]):
    if recorded:
        with Path("run", ".hydra", "overrides.yaml").open("a") as file:
            file.write(recorded)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.mark.slow
def test_nash_conv_is_that_of_the_run_by_its_checkpoint_and_drawn(tmp_path: Path) -> None:
    words = "env=openspiel league=self_play env.num_envs=4 rollouts.fragment_env_steps=50 hydra.run.dir=run"
    commands = [
        (["train", *SHORT, *words.split(), "league.nash_conv_every_env_steps=100"], ""),
        (["league", "run"], ""),
        (["league", "run", "--nash-conv"], ""),
        # A folder that was changed since is not trusted to name code.
        (["league", "run", "--nash-conv"], "- 'league.outcome={_target_: os.system}'\n"),
    ]
    # In a process of its own: under pytest's capture, the first import of OpenSpiel closes the captured files.
    program = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    ran = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=True)
    trained, shown, said, refused = (json.loads(line) for line in ran.stdout.splitlines())
    assert trained[0] == 0
    last = reports(tmp_path / "run")[-1]
    assert shown[1].startswith("kuhn_poker  self_play  epoch ")
    assert (said[0], said[2]) == (0, "")
    (found,) = re.findall(r"NashConv (\S+) of the league's solution at (\S+) env steps", said[1])
    assert float(found[0]) == pytest.approx(last["league"]["nash_conv"], rel=1e-3)
    assert found[1] == f"{last['env_steps']:,}"
    with Image.open(tmp_path / "run" / "league" / "nash_conv.png") as image:
        image.verify()
    assert refused[0] == 2
    assert "os.system'; look at it, and if you trust it add --trust" in refused[2]


def test_a_title_has_the_mode_or_a_matchmaker_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    choices = "hydra: {runtime: {choices: {env: connect_four, league: pfsp}}}"
    (tmp_path / ".hydra" / "hydra.yaml").write_text(choices, encoding="utf-8")
    for target, title in (("marlflow.league.PFSP", "connect_four  pfsp"), ("mine.Hardest", "connect_four  Hardest")):
        config = f"league: {{matchmaker: {{_target_: {target}}}}}"
        (tmp_path / ".hydra" / "config.yaml").write_text(config, encoding="utf-8")
        assert _title(tmp_path) == title
