"""Jobs in processes of their own: equal to those in the command's, ended in order, and resumed when requeued."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.killed_drivers import SETTINGS, Command, started
from marlflow.cli.sweep_jobs import requeued_on_signal
from marlflow.runs.saved_runs import newest
from tests.cli.conftest import Marlflow, table
from tests.cli.test_train import SHORT
from tests.driver.kept_runs import without_times

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # of the plugins
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
ENDLESS = (*SETTINGS, "runtime=inline", "stop.env_steps=900000000", "checkpoint.every_env_steps=1000000")


def content(run: Path) -> tuple[Any, dict[str, str]]:
    """A run's metrics without times, and the hashes of its learners' and workers' tensors."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    tensors = [path for path in run.glob("checkpoints/*/*.safetensors") if path.name != "driver.safetensors"]
    assert tensors
    hashes = {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in tensors}
    return without_times([json.loads(line) for line in lines]), hashes


def test_parallel_jobs_equal_those_in_the_commands_process_bit_for_bit(marlflow: Marlflow, tmp_path: Path) -> None:
    words = ("train", "-m", *SHORT, "default_policy.algorithm.minibatch_agent_steps=100", "seed=1,2")
    serial = marlflow(*words, "hydra.sweep.dir=serial")
    parallel = marlflow(*words, "hydra.sweep.dir=parallel", *JOBLIB)
    assert (serial.code, parallel.code) == (0, 0), parallel.err
    for job in ("0", "1"):
        assert content(tmp_path / "serial" / job) == content(tmp_path / "parallel" / job)
    assert content(tmp_path / "serial" / "0") != content(tmp_path / "serial" / "1")
    untimed = [
        [{**row, "folder": ""} for row in table(tmp_path / name / "sweep.csv")] for name in ("serial", "parallel")
    ]
    assert untimed[0] == untimed[1]
    assert not list((tmp_path / "parallel").glob(".jobs-*"))


def wait_for_reports(command: Command, *runs: Path) -> None:
    """Wait until each of these runs has reported."""
    files = [run / "metrics.jsonl" for run in runs]
    while not all(file.exists() and file.stat().st_size > 0 for file in files):
        command.helpers()  # raises if it has ended by itself
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_parallel_jobs_end_in_order_and_no_other_begins(tmp_path: Path, number: signal.Signals) -> None:
    words = ["train", "-m", *ENDLESS, *JOBLIB, "seed=1,2,3,4", "hydra.sweep.dir=several"]
    several = tmp_path / "several"
    with started(words, tmp_path) as command:
        wait_for_reports(command, several / "0", several / "1")
        command.send(number, group=number == signal.SIGINT)  # as Ctrl-C, or `kill` of the command alone
        assert command.ends() == (130 if number == signal.SIGINT else 143)
        assert command.left() == []
    assert not any("Traceback" in line for line in command.said), command.said
    reason = "interrupted" if number == signal.SIGINT else "terminated"
    assert {row["job"] for row in table(several / "sweep.csv")} == {"0", "1"}
    for row in table(several / "sweep.csv"):
        assert row["ended_by"] in (reason, "terminated")
        last = json.loads((several / row["folder"] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        assert newest(several / row["folder"]).env_steps == last["env_steps"]


def test_a_preempted_job_of_submitit_is_requeued_and_resumes_its_run(tmp_path: Path) -> None:
    until = "stop.env_steps=6000"
    words = ["train", "-m", *ENDLESS, until, "hydra/launcher=submitit_local", "seed=1,2", "hydra.sweep.dir=several"]
    several = tmp_path / "several"
    with started(words, tmp_path) as command:
        run = several / "0"
        wait_for_reports(command, run)
        (record,) = (json.loads(path.read_text()) for path in several.glob(".jobs-*/0.json"))
        os.kill(record["pid"], signal.SIGUSR2)
        assert command.ends() == 0, command.said
    logs = "".join(path.read_text(encoding="utf-8") for path in (several / ".submitit").rglob("*_log.*"))
    assert "Requeued job" in logs
    assert [row["ended_by"] for row in table(several / "sweep.csv")] == [until, until]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line["env_steps"] for line in lines]
    assert steps == sorted(steps)
    assert sorted(set(steps)) == list(range(200, 6001, 200))


def test_the_clusters_signal_ends_the_run_before_the_job_is_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    order: list[str] = []

    def requeue(number: int, frame: object) -> None:
        order.append("requeued")
        raise SystemExit(144)

    before = signal.signal(signal.SIGUSR2, requeue), signal.signal(signal.SIGTERM, lambda *_: order.append("ending"))

    def end(error: Exception, number: signal.Signals | None) -> None:
        with requeued_on_signal():
            if number is not None:
                os.kill(os.getpid(), number)
                order.append("checkpoint")
            raise error

    try:
        with pytest.raises(SystemExit):
            end(RuntimeError("the run was terminated"), signal.SIGUSR2)
        with pytest.raises(RuntimeError):
            end(RuntimeError("another error"), None)
    finally:
        signal.signal(signal.SIGUSR2, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert order == ["ending", "checkpoint", "requeued"]
