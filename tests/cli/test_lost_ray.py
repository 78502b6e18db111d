"""A run whose Ray is killed ends with one error, says how to resume, and leaves no process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from benchmarks.killed_drivers import ROUND, SETTINGS, started
from marlflow.runs.saved_runs import newest

pytestmark = pytest.mark.slow

WORDS = ["train", *SETTINGS, "runtime=ray", "stop.env_steps=900000000", "hydra.run.dir=run"]


@pytest.mark.parametrize(("daemon", "named"), [("raylet", "raylet"), ("gcs_server", "control service (GCS)")])
def test_a_run_whose_ray_is_killed_says_so_and_leaves_nothing(daemon: str, named: str, tmp_path: Path) -> None:
    with started([*WORDS, "checkpoint.every_env_steps=100000000"], tmp_path) as command:
        command.wait_for(f"{3 * ROUND} env steps")
        (killed,) = (helper for helper in command.helpers() if helper.name() == daemon)
        command.send(signal.SIGCONT)  # so that all its processes are remembered
        before = len(command.said)
        killed.kill()
        assert command.ends() == 1
        said = command.said[before:]
        assert said[-2:] == [
            f"error: Ray's {named}, process {killed.pid}, was killed (SIGKILL): by a user, or by the kernel because "
            "memory ran out",
            f"to resume from {ROUND} env steps: marlflow resume {tmp_path / 'run'}",
        ]
        # Whatever else was said is a report, or the summary.
        assert [line for line in said[:-2] if not line.startswith((" ", "ended after"))] == []
        assert command.left() == []
    assert newest(tmp_path / "run").env_steps == ROUND
