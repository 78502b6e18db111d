"""Sinks of wandb, MLflow and Trackio: what they keep of a run is read back; none of them needs a network here."""

from __future__ import annotations

import builtins
import importlib.util
import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import marlflow as mf
from marlflow.observe.report import ResumePoint
from marlflow.observe.sinks import read_metrics, scalars, scalars_by_step
from tests.observe.records import INFO, record, tell, write


@pytest.fixture
def info(tmp_path: Path) -> mf.RunInfo:
    return replace(INFO, id="0123abcd", run_dir=tmp_path / "tag" / "now", configuration={"seed": 3, "env": {"n": 2}})


# -- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(tracking_uri=str(tmp_path / "mlruns"))


def runs_of(store: Any) -> list[Any]:
    return list(store.search_runs([store.get_experiment_by_name("tag").experiment_id]))


def history(store: Any, run: Any) -> dict[str, dict[int, float]]:
    """The last value of each metric by step."""
    found: dict[str, dict[int, float]] = {}
    for name in run.data.metrics:
        for point in store.get_metric_history(run.info.run_id, name):
            found.setdefault(name, {})[point.step] = point.value
    return found


def expected(path: Path) -> dict[str, dict[int, float]]:
    """The same, of metrics.jsonl."""
    found: dict[str, dict[int, float]] = {}
    for report in read_metrics(path):
        for step, numbers in scalars_by_step(report).items():  # type: ignore[arg-type]
            for name, value in numbers.items():
                found.setdefault(name, {})[step] = value
    return found


@pytest.mark.slow
def test_the_file_store_of_mlflow_has_what_metrics_jsonl_has(store: Any, info: mf.RunInfo, tmp_path: Path) -> None:
    records = [record(number) for number in (1, 2, 3)]
    tell(mf.MlflowSink(str(tmp_path / "mlruns"), tags={"team": "a"}), *records, info=info)
    (run,) = runs_of(store)
    assert history(store, run) == expected(write(tmp_path / "metrics.jsonl", *records))
    assert run.data.params == {"seed": "3", "env.n": "2"}
    assert run.data.tags["team"] == "a"
    assert (run.info.run_name, run.info.status) == ("tag/now", "FINISHED")


def test_a_resumed_run_goes_on_in_the_same_run_of_mlflow(store: Any, info: mf.RunInfo, tmp_path: Path) -> None:
    folder = str(tmp_path / "mlruns")
    other = record(2) | {"env_steps_per_s": 7.0}
    tell(mf.MlflowSink(folder), record(1), other, record(3), info=info, error="Killed: ")
    assert [run.info.status for run in runs_of(store)] == ["FAILED"]
    tell(mf.MlflowSink(folder), record(2), record(3), info=replace(info, resumed=ResumePoint(1000, 1)))
    tell(mf.MlflowSink(folder), info=replace(info, id="ffffffff"))
    first = next(run for run in runs_of(store) if run.data.tags["marlflow.run"] == info.id)
    assert len(runs_of(store)) == 2
    assert first.info.status == "FINISHED"
    assert history(store, first) == expected(write(tmp_path / "metrics.jsonl", *map(record, (1, 2, 3))))
    assert first.data.tags["marlflow.resumed_at_env_steps"] == "1000"


def test_names_that_are_one_at_mlflow_stay_apart(store: Any, info: mf.RunInfo, tmp_path: Path) -> None:
    one = record(1)
    metrics = one["policies"]["agent"]
    infos = {"d [m]": 1.0, "d (m)": 2.0, "x" * 300: 3.0}
    policies = {"a&": {**metrics, "infos": infos}, "a_": metrics}
    named = replace(info, configuration={"policies": {"a&": {"lr": 1.0}, "a_": {"lr": 2.0}}})
    tell(mf.MlflowSink(str(tmp_path / "mlruns")), {**one, "policies": policies}, info=named)
    (run,) = runs_of(store)
    assert sorted(run.data.params.values()) == ["1.0", "2.0"]
    assert sorted(value for name, value in run.data.metrics.items() if "/infos/" in name) == [1.0, 2.0, 3.0]


# -- wandb ------------------------------------------------------------------------------------------------------------


def offline_histories(folder: Path) -> list[dict[str, float]]:
    """What was logged, from the file that `wandb sync` would send."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    found = []
    for data in leveldb_records(path.read_bytes()):
        made = Record.FromString(data)
        if made.WhichOneof("record_type") == "history":
            found.append({one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in made.history.item})
    return found


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB after a header of 7 bytes: checksum, length, kind, and a part of a record."""
    at, parts, last_kinds, block = 7, b"", (1, 4), 32_768
    while at < len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in last_kinds:
            yield parts
            parts = b""


@pytest.mark.slow
def test_wandb_offline_has_all_numbers_over_env_steps(
    info: mf.RunInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # where nobody listens
    info.run_dir.mkdir(parents=True)
    tell(mf.WandbSink(mode="offline", tags=["test"]), record(1), record(2), info=info)
    wandb.teardown()  # waits until wandb's process has written the file
    found = [{key: value for key, value in one.items() if key[0] != "_"} for one in offline_histories(info.run_dir)]
    steps = [
        {**numbers, "env_steps": step} for each in (1, 2) for step, numbers in scalars_by_step(record(each)).items()
    ]
    assert found == steps
    assert (info.run_dir / "wandb" / "latest-run" / "run-0123abcd.wandb").exists()


@pytest.mark.parametrize(
    ("settings", "variables", "problems"),
    [({}, {}, 1), ({}, {"WANDB_API_KEY": "0" * 40}, 0), ({"mode": "offline"}, {}, 0), ({"mode": "disabled"}, {}, 0)],
)
def test_wandb_online_needs_a_key_before_the_run_starts(
    settings: dict[str, Any], variables: dict[str, str], problems: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    found = list(mf.WandbSink(**settings).problems())
    assert len(found) == problems
    assert all("set WANDB_API_KEY, run `wandb login`, or choose mode=offline" in problem for problem in found)


# -- Trackio, which cannot be installed beside the pillow of constraints.txt ------------------------------------------


def test_trackio_is_told_each_number_once_and_the_same_name_after_a_resume(
    info: mf.RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, logged, finished = list[dict[str, Any]](), list[tuple[dict[str, float], int]](), []

    def init(**settings: Any) -> Any:
        begun.append(settings)
        return SimpleNamespace(
            log=lambda numbers, step: logged.append((numbers, step)), finish=lambda: finished.append(True)
        )

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    tell(mf.TrackioSink(), record(1), record(2), info=info)
    tell(mf.TrackioSink(), record(3), info=replace(info, resumed=ResumePoint(2000, 2)))
    assert [settings["name"] for settings in begun] == ["tag/now 0123abcd"] * 2
    assert [settings["resume"] for settings in begun] == ["allow"] * 2
    assert [step for _, step in logged] == [1000, 1500, 2000, 3000]
    assert {name for numbers, _ in logged for name in numbers} == {
        name for number in (1, 2, 3) for name, value in scalars(record(number)) if not math.isnan(value)
    }
    assert len(finished) == 2


# -- missing extras ---------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, imported = importlib.util.find_spec, builtins.__import__
    names = ("wandb", "mlflow", "trackio")

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in names else found(name, package)

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr("marlflow.observe.callback.find_spec", find_spec)
    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("sink", "extra"), [(mf.WandbSink(), "wandb"), (mf.MlflowSink(), "mlflow"), (mf.TrackioSink(), "trackio")]
)
def test_an_extra_that_is_missing_is_named_with_its_remedy(sink: Any, extra: str) -> None:
    (problem,) = sink.problems()
    assert problem.endswith(f"which is not installed; pip install 'marlflow[{extra}]'")
