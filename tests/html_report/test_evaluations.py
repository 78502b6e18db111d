"""Evaluations after training, as they are on the page and in the files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from marlflow.driver.evaluation_files import FOLDER as WRITTEN_TO
from marlflow.driver.evaluation_files import FORMAT
from marlflow.html_report import evaluations
from marlflow.html_report.report import write_report
from tests.html_report.test_page import read
from tests.html_report.written import config, estimate, evaluated, write_evaluation, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", evaluated([1.0]), config())


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "evaluations.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_reader_looks_for_what_the_writer_writes() -> None:
    assert (evaluations.FOLDER, evaluations._FORMAT) == (WRITTEN_TO, FORMAT)


def test_teams_pairs_and_sides_are_in_the_files_and_on_the_page(run: Path, tmp_path: Path) -> None:
    write_evaluation(run, 9)
    write_evaluation(run, 10, results=[], mode="greedy", modes="greedy", checkpoint="3000")
    page = read(tmp_path, run)
    found = rows(tmp_path / "out")
    assert [(row["evaluation"], row["opponent"], row["side"], row["mode"]) for row in found] == [
        ("10", "its own team", "", "greedy"),
        ("9", "its own team", "", "sampled"),
        ("9", "random", "", "sampled"),
        ("9", "random", "player_0", "sampled"),
        ("9", "random", "player_1", "sampled"),
    ]
    pair = found[2]
    assert [pair[name] for name in ("episodes", "return", "return_low", "win", "win_high", "draw", "loss")] == [
        *("4", "1.5", "", "0.5", "0.9", "0.25", "0.25")
    ]
    assert (pair["seed"], pair["checkpoint"], pair["ended"]) == ("5", "1000", "2027-01-15T08:00:00+00:00")
    data = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["evaluations"]
    assert [{name: "" if value is None else str(value) for name, value in row.items()} for row in data] == found
    assert "evaluation 9: checkpoint 1000, seed 5, 2027-01-15 08:00 UTC" in page.text
    assert page.text.index("evaluation 10:") < page.text.index("evaluation 9:")
    assert "prey random as player_1 1.50 0.50 [ 0.10 , 0.90 ]" in page.text


def test_returns_are_sums_over_agents_if_asked_for(run: Path, tmp_path: Path) -> None:
    write_evaluation(run, 9)
    write_report([run], tmp_path / "out", units="sum")
    found = [tuple(row[name] for name in ("opponent", "return", "iqm", "units")) for row in rows(tmp_path / "out")]
    assert found == [("its own team", "", "", "sum"), *[("random", "4.5", "4.25", "sum")] * 3]
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Means of returns (sum over its agents, per episode)" in page


@pytest.mark.parametrize("key", ["has_winners", "constant_sum"])
def test_nobody_wins_where_gains_are_not_losses(key: str, run: Path, tmp_path: Path) -> None:
    result = {"member": "prey", "opponent": "random", "games": 2, key: False, "as": {}}
    write_evaluation(run, 1, results=[{**result, "return": estimate(1.0), "win": estimate(1.0)}], policies=[])
    page = read(tmp_path, run)
    (row,) = rows(tmp_path / "out")
    assert (row["return"], row["win"], row["draw"]) == ("1.0", "", "")
    assert "prey random 1.00 2 sampled" in page.text


def test_a_pair_whose_games_all_broke_has_no_return(run: Path, tmp_path: Path) -> None:
    write_evaluation(run, 1, results=[{"member": "prey", "opponent": "random", "games": 0, "as": {}}], policies=[])
    read(tmp_path, run)
    (row,) = rows(tmp_path / "out")
    assert (row["episodes"], row["return"]) == ("0", "")


# A time that no calendar has.
FAR = """{"format": "marlflow evaluation 1", "ended_s": 1e18, "results": [],
          "policies": [{"policy": "prey", "episodes": 2, "return_mean": 1.0, "return_std": 0.0}]}"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "1.json cannot be read"),
        ("[]", "is not in the form 'marlflow evaluation 1'"),
        ('{"format": "marlflow evaluation 2"}', "is not in the form 'marlflow evaluation 1'"),
        ('{"format": "marlflow evaluation 1"}', "is not an evaluation: KeyError: 'policies'"),
        ('{"format": "marlflow evaluation 1", "policies": [3], "results": []}', "is not an evaluation: TypeError"),
        (FAR, "is not an evaluation: OSError"),
    ],
)
def test_a_file_that_cannot_be_used_is_noted(run: Path, tmp_path: Path, text: str, sentence: str) -> None:
    write_evaluation(run, 2)
    (run / "evaluations" / "1.json").write_text(text, encoding="utf-8")
    (run / "evaluations" / "notes.json").write_text("mine", encoding="utf-8")
    note, *_ = write_report([run], tmp_path / "out").notes
    assert sentence in note
    assert note.endswith("; it is left out")
    assert {row["evaluation"] for row in rows(tmp_path / "out")} == {"2"}
