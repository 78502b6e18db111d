import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.observe.report import ResumePoint
from marlflow.observe.sinks import JsonlSink, read_metrics, scalars
from tests.observe.records import INFO, record, tell, write

END = mf.RunEnd("stop.env_steps=3000", record(3))


def resumed_at(env_steps: int, reports: int) -> mf.RunInfo:
    return replace(INFO, resumed=ResumePoint(env_steps, reports))


def test_what_was_reported_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "run" / "metrics.jsonl", record(1), record(2))
    assert read_metrics(path) == [record(1), record(2)]


def test_each_report_is_one_line_and_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.began(INFO)
    for number in (1, 2, 3):
        sink.reported(record(number))
        assert path.read_text().count("\n") == number
        assert json.loads(path.read_text().splitlines()[-1]) == record(number)
    sink.ended(END)


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    report = record(1) | {"league": {"a": math.nan, "b": [math.inf, 1.0], "c": np.float32("nan"), "d": -math.inf}}
    (back,) = read_metrics(write(tmp_path / "metrics.jsonl", report))
    assert back["league"] == {"a": None, "b": [None, 1.0], "c": None, "d": None}


def test_numbers_of_numpy_and_torch_become_numbers(tmp_path: Path) -> None:
    league = {
        "int": np.int64(3),
        "float": np.float64(0.5),
        "float32": np.float32(0.5),
        "bool": np.bool_(True),
        "array": np.array([1, 2]),
        "tensor": torch.tensor(2.5),
        7: (1, 2),
    }
    (back,) = read_metrics(write(tmp_path / "metrics.jsonl", record(1) | {"league": league}))
    assert back["league"] == {
        "int": 3,
        "float": 0.5,
        "float32": 0.5,
        "bool": True,
        "array": [1, 2],
        "tensor": 2.5,
        "7": [1, 2],
    }
    assert type(back["league"]["int"]) is int


def test_a_value_that_is_no_metric_is_named_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.began(INFO)
    with pytest.raises(TypeError, match=r"record\.faults\.lost of a metrics report: expected a number.* got object"):
        sink.reported(record(1) | {"faults": {"lost": object()}})
    sink.ended(END)
    assert path.read_text() == ""


@given(env_steps=st.lists(st.integers(0, 50)).map(sorted), before=st.integers(0, 50))
def test_a_resumed_run_keeps_the_reports_before_its_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, env_steps: list[int], before: int
) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    write(path, *({"env_steps": steps} for steps in env_steps))
    sink = JsonlSink(path)
    tell(sink, info=resumed_at(0, before))
    assert [report["env_steps"] for report in read_metrics(path)] == env_steps[:before]
    assert [json.loads(line)["env_steps"] for line in sink.dropped] == env_steps[before:]
    assert [each.name for each in path.parent.iterdir()] == ["metrics.jsonl"]


def test_a_line_cut_off_by_a_crash_is_left_out_and_gone_after_resume(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.jsonl", record(1))
    path.write_text(path.read_text() + '{"time_s": 8.0, "env_')
    assert read_metrics(path) == [record(1)]
    write(path, record(2), info=resumed_at(1000, 2))
    assert read_metrics(path) == [record(1), record(2)]


@pytest.mark.parametrize("left", [None, 0, 1])
def test_reports_that_the_file_lost_since_a_checkpoint_are_not_counted(tmp_path: Path, left: int | None) -> None:
    path = tmp_path / "metrics.jsonl"
    if left is not None:
        write(path, *[record(number) for number in range(left)])
    sink = JsonlSink(path)
    tell(sink, record(7), info=resumed_at(0, 3))
    assert sink.lines == (left or 0) + 1
    # A resume from a checkpoint taken here keeps what is in the file, and nothing that comes after.
    write(path, record(8), info=resumed_at(0, sink.lines))
    write(path, info=resumed_at(0, sink.lines))
    assert read_metrics(path)[-1] == record(7)


def test_a_broken_line_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(mf.InvalidInput, match=r"metrics\.jsonl does not exist"):
        read_metrics(path)
    for line in (b"[1]\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"):
        path.write_bytes(line)
        with pytest.raises(mf.InvalidInput, match=r"line 1: expected one JSON object"):
            read_metrics(path)
    path.write_text('{"time_s": 1.0}\nnonsense\n')
    with pytest.raises(mf.InvalidInput, match=r"line 2: expected one JSON object, got 'nonsense'"):
        read_metrics(path)


def test_scalars_have_the_path_of_their_key() -> None:
    found = dict(scalars(record(2) | {"league": {"rating": {"main": np.float32(25.0)}, "name": "pfsp"}}))
    assert found["run/env_steps_per_s"] == 250.0
    assert found["learners/agent/updates"] == 800.0
    assert found["learners/adversary/loss/value"] == 3.5
    assert found["learners/adversary/schedules/learning_rate"] == 0.0005
    assert found["stages/adversary/Learn/starved_s"] == 4.0
    assert found["agents/adversary_0/return_mean"] == 1.5
    assert found["faults/workers_lost"] == 0.0
    assert found["league/rating/main"] == 25.0
    assert not {"agents/goal_0/return_mean", "policies/goal/return_mean", "league/name"} & found.keys()


def test_heavy_libraries_are_not_imported_before_they_are_used() -> None:
    code = (
        "import sys; from marlflow.observe import console, figure, mlflow, sinks, tensorboard, timeline; "
        "from marlflow.observe import trackio, wandb; "
        "print({'tensorboard', 'matplotlib', 'mlflow', 'rich', 'torch', 'trackio', 'wandb'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
