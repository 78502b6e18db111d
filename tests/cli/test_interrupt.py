"""Ctrl-C on the command line: the run ends in order, the exit code says so, and a sweep starts no further job."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = "import sys; from marlflow.cli.main import main; sys.exit(main(sys.argv[1:]))"
WORDS = ["train", "env=cartpole_team", "runtime=inline", "stop.env_steps=900000000", "log.every_env_steps=2000"]


def test_an_interrupted_sweep_starts_no_further_job(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *WORDS, "-m", "seed=1,2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that starts a command in the background has it ignore SIGINT; the user's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "updates" in line:
                run.send_signal(signal.SIGINT)
                break
        rest = run.stdout.read()
    assert run.returncode == 130
    assert "stopping: interrupted" in rest
    assert "ended after" in rest
    assert [folder.name for folder in tmp_path.glob("runs/cartpole_team/*/*") if folder.is_dir()] == ["0"]
    assert list(tmp_path.glob("runs/cartpole_team/*/0/checkpoints/*/cart.safetensors"))
