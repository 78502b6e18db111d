"""Whoever reads a run says in one line which checkpoint is damaged and which is used instead, or refuses it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.runs.saved_runs import chosen
from tests.cli.conftest import Marlflow, trained_in
from tests.cli.test_league import TRAINED
from tests.cli.test_links import COMMANDS

DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file cut off": (
        lambda folder: cut(folder / "driver.safetensors"),
        r"driver\.safetensors has \d+ bytes, not \d+",
    ),
    "a bit of a file": (
        lambda folder: flip(folder / "learner.player.safetensors"),
        r"'learner\.player' is damaged: .*",
    ),
    "a file that is gone": (lambda folder: (folder / "driver.safetensors").unlink(), r"driver\.safetensors is missing"),
    "the manifest": (lambda folder: cut(folder / "checkpoint.json"), r"checkpoint\.json is damaged: .*"),
    "the manifest that is gone": (lambda folder: (folder / "checkpoint.json").unlink(), "checkpoint.json is missing"),
}
READERS = {name: words for name, words in COMMANDS.items() if name not in ("resume", "report")}
READERS["a member of a league"] = (*READERS["opponent"][:2], "against=run:player@1", "episodes=2")
READERS["a team"] = (*READERS["opponent"][:2], "against=run", "episodes=2")
READERS["an exported member"] = ("league", "run", "--export", "player@1", "first.safetensors")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def line(why: str) -> str:
    return rf"checkpoint \S*run/checkpoints/2400 is not whole \((.* )?{why}\); checkpoint 1600 is used instead"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has a league and two checkpoints."""
    folder = trained_in(tmp_path_factory.mktemp("trained"), ["train", *TRAINED, "checkpoint.every_env_steps=1000"])
    assert sorted(path.name for path in (folder / "trained" / "checkpoints").iterdir()) == ["1600", "2400"]
    return folder / "trained"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "good")
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("reader", READERS)
def test_a_command_says_it_in_one_line_and_strict_refuses(
    reader: str, marlflow: Marlflow, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut(run / "checkpoints" / "2400" / "driver.safetensors")
    words = READERS[reader]
    said = marlflow(*words)
    assert said.code == 0, said.err
    (found,) = [text for text in caplog.messages if "is not whole" in text]
    assert re.fullmatch(line(DAMAGES["a file cut off"][1]), found)
    if reader == "warm start":
        return
    (run.parent / "first.safetensors").unlink(missing_ok=True)
    refused = marlflow(*words, "strict=true")
    assert refused.code == 2
    assert re.fullmatch(
        r"error: checkpoint \S*run/checkpoints/2400 is not whole \(.*\), and strict=true uses no other; put it back "
        r"from a copy, or choose a whole one: checkpoint=1600\n",
        refused.err,
    )


@pytest.mark.parametrize("damage", DAMAGES)
def test_python_says_it_in_one_line_and_strict_refuses(
    damage: str, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, why = DAMAGES[damage]
    change(run / "checkpoints" / "2400")
    uses: dict[str, Callable[..., Any]] = {
        "load": mf.load,
        "evaluate": lambda run, **strict: mf.evaluate(run, episodes=2, **strict),
        "export": lambda run, **strict: mf.export(run, format="pt2", **strict),
    }
    # All read the checkpoint by the same function: of one damage every use says so, of the others the quickest.
    for name, use in uses.items() if damage == "a file cut off" else [("load", mf.load)]:
        caplog.clear()
        use(run)
        (record,) = [record for record in caplog.records if record.name == "marlflow"]
        assert (record.levelname, bool(re.fullmatch(line(why), record.getMessage()))) == ("WARNING", True), name
        with pytest.raises(mf.CheckpointUnusable, match=r"is not whole .* strict=true uses no other"):
            use(run, strict=True)
    assert mf.load(run, checkpoint=1600, strict=True).checkpoint == 1600
    assert mf.load(run.parent / "good", strict=True).checkpoint == 2400


def test_a_report_notes_it(marlflow: Marlflow, run: Path) -> None:
    cut(run / "checkpoints" / "2400" / "driver.safetensors")
    said = marlflow("report", "run")
    assert said.code == 0
    (note,) = [text for text in said.out.splitlines() if "is not whole" in text]
    assert re.fullmatch(f"note: {line(DAMAGES['a file cut off'][1])}", note)
    assert "checkpoint 1600 is used instead" in (run.parent / "report" / "index.html").read_text(encoding="utf-8")


def test_a_damaged_best_checkpoint_is_said_too(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    scores = {1600: 1.0, 2400: 2.0}
    assert chosen(run, "best", lambda: scores).env_steps == 2400
    cut(run / "checkpoints" / "2400" / "driver.safetensors")
    assert chosen(run, "best", lambda: scores).env_steps == 1600
    assert re.fullmatch(line(DAMAGES["a file cut off"][1]), caplog.messages[-1])
    with pytest.raises(mf.CheckpointUnusable, match="strict=true uses no other"):
        chosen(run, "best", lambda: scores, strict=True)
    caplog.clear()
    assert chosen(run, "best", lambda: {1600: 3.0, 2400: 2.0}, strict=True).env_steps == 1600
    assert not caplog.messages


def test_a_checkpoint_that_another_run_has_removed_since_is_read_no_more(run: Path) -> None:
    team = mf.load(run.parent / "good")
    assert team[f"{run}:player"].about["env_steps"] > 1600
    shutil.rmtree(run / "checkpoints" / "2400")
    assert team[f"{run}:random"].about["algorithm"] == "random"
    assert team[f"{run}:player@1"].about["member"] == "player@1"


@pytest.mark.slow
def test_the_line_is_on_standard_error_and_json_stays_json(run: Path) -> None:
    cut(run / "checkpoints" / "2400" / "driver.safetensors")
    words = [sys.executable, "-m", "marlflow", "evaluate", "run", "episodes=2", "--json"]
    said = subprocess.run(words, cwd=run.parent, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["checkpoint"] == "1600"
    assert re.match(line(DAMAGES["a file cut off"][1]) + "\nwrote evaluations/1.json", said.stderr)
