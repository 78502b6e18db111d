"""Ctrl-C while Ray runs: the run finishes its round, keeps what it learned, ends by itself and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

LIMIT_S = 120
ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
from pathlib import Path
from marlflow.experiment.experiment import Log, Rollouts, Stop
from marlflow.experiment.train import train
from tests.runtime.small_runs import small_run


experiment = small_run(
    "ray", stop=Stop(env_steps=10**9), rollouts=Rollouts(1, 40), log=Log(40, "plain", tensorboard=False)
)
result = train(experiment, Path(sys.argv[1]))
print("stopped by", result.stopped_by, flush=True)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that nothing but a signal ends, in a process group of its own, as a terminal would start it."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    yield process
    for left in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []:
        left.kill()
    process.kill()
    process.wait(LIMIT_S)
    assert process.stdout is not None
    process.stdout.close()


def wait_for_reports(process: subprocess.Popen[str], metrics: Path, count: int) -> None:
    """Reads what the run says until it has reported so often; a run that ends before has failed."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if metrics.exists() and len(metrics.read_text().splitlines()) >= count:
            return
    raise AssertionError("the run ended by itself:\n" + "".join(said))


def test_one_interrupt_ends_a_run_in_order_and_leaves_no_process(
    running: subprocess.Popen[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    wait_for_reports(running, run_dir / "metrics.jsonl", 5)
    started = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
    assert any("raylet" in process.name() for process in started)
    # To the whole group, as Ctrl-C in a terminal.
    os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0, said
    assert "stopped by interrupted" in said
    assert "Traceback" not in said
    (kept,) = (run_dir / "checkpoints").iterdir()
    assert {path.name for path in kept.iterdir()} == {"hunters.safetensors", "prey.safetensors"}
    _, left = psutil.wait_procs(started, timeout=LIMIT_S)
    assert not left, f"still running: {left}"
