"""Which folders are runs, and what is read of them."""

import json
from pathlib import Path

import pytest

from marlflow.base.errors import ConfigInvalid
from marlflow.html_report.runs import read_runs
from tests.html_report.written import config, evaluated, write_run, write_seeds
from tests.sentences import refusals


def test_a_folder_that_is_no_run_counts_as_the_runs_in_it(tmp_path: Path) -> None:
    write_seeds(tmp_path / "sweep", [[1.0]] * 11)
    write_run(tmp_path / "other" / "2026-01-31_12-00-00", evaluated([2.0]))
    (tmp_path / ".hidden").mkdir()
    write_run(tmp_path / ".hidden" / "run", evaluated([2.0]))
    runs, notes = read_runs([tmp_path])
    folders = [run.folder.relative_to(tmp_path).as_posix() for run in runs]
    assert folders == ["other/2026-01-31_12-00-00", *(f"sweep/{number}" for number in range(11))]
    assert [run.seed for run in runs] == [None, *range(11)]
    assert notes == []


def test_a_run_counts_once_however_it_is_named(tmp_path: Path) -> None:
    sweep = write_seeds(tmp_path / "sweep", [[1.0], [2.0]])
    (tmp_path / "link").symlink_to(sweep / "1")
    runs, _ = read_runs([sweep / "1", sweep, tmp_path / "link", sweep / "0" / ".." / "0"])
    assert [run.folder for run in runs] == [sweep / "1", sweep / "0"]


def test_nothing_inside_a_run_is_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", evaluated([1.0]))
    write_run(run / "evaluations" / "copy", evaluated([5.0]))
    runs, _ = read_runs([tmp_path])
    assert [found.folder for found in runs] == [run]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.unlink(), "has no metrics.jsonl"),
        (lambda path: path.write_text(""), "has no report yet"),
        (lambda path: path.write_text('{"env_steps": 1'), "has no report yet"),
        (lambda path: path.write_text("what\n"), "line 1: expected one JSON object"),
        (lambda path: path.write_text("[1]\n"), "line 1: expected one JSON object"),
        (lambda path: path.write_text('{"env_steps": "many"}\n'), "line 1: expected a report with env_steps"),
        (lambda path: path.write_bytes(b"\xff\xfe\n"), "line 1: expected one JSON object"),
        (lambda path: path.write_text("[" * 100_000 + "\n"), "metrics.jsonl"),
    ],
)
def test_a_run_without_reports_is_left_out_or_refused_if_it_is_alone(tmp_path, spoil, sentence) -> None:
    sweep = write_seeds(tmp_path / "sweep", [[1.0], [2.0]])
    spoil(sweep / "0" / "metrics.jsonl")
    runs, (note,) = read_runs([sweep])
    assert [run.folder.name for run in runs] == ["1"]
    assert sentence in note
    assert note.endswith("; the run is left out")
    with pytest.raises(ConfigInvalid, match=sentence):
        read_runs([sweep / "0", sweep / "1"])


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    first, second = refusals(ConfigInvalid, read_runs, [tmp_path / "nowhere", tmp_path / "empty"])
    assert first == f"there is no directory {tmp_path / 'nowhere'}; give the directory of a run, or of several"
    assert second.startswith(f"{tmp_path / 'empty'} is not the directory of a run, and no run is in it")


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", evaluated([1.0, 2.0]))
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"env_steps": 99')
    ((found,), _) = read_runs([run])
    assert found.env_steps == 2000


def test_the_configuration_of_an_earlier_run_is_that_of_hydra(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", evaluated([1.0]))
    (run / ".hydra").mkdir()
    (run / ".hydra" / "config.yaml").write_text("seed: 4\nname: ${oc.env:HOME}\n", encoding="utf-8")
    assert read_runs([run])[0][0].config == {"seed": 4}
    (run / "experiment.json").write_text(json.dumps(config(seed=5)), encoding="utf-8")
    assert read_runs([run])[0][0].seed == 5


@pytest.mark.parametrize("text", ["{", "[]", '"text"', "!!python/object/apply:os.getcwd []"])
def test_a_configuration_that_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "run", evaluated([1.0]))
    (run / ".hydra").mkdir()
    for name in ("experiment.json", ".hydra/config.yaml"):
        (run / name).write_text(text, encoding="utf-8")
    assert read_runs([run])[0][0].config == {}
