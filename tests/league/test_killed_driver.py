"""A driver that is killed between a snapshot and its checkpoint: the resumed run takes the same snapshot again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marlflow.driver.stored_members import MEMBERS
from marlflow.driver.train import resume, train
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.watching import reports
from tests.league.killed_driver import KILLED_AT, saved_often

pytestmark = pytest.mark.slow

ENV_STEPS = 864


def test_resumed_after_a_kill_it_is_the_run_that_was_never_killed(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    program = [sys.executable, "-m", "tests.league.killed_driver", str(killed)]
    assert subprocess.run(program, check=False, capture_output=True).returncode == -signal.SIGKILL
    snapshots = kept(killed)["driver"]["dealer"]["matchmaker"]["members"]["snapshots"]
    assert 0 < len(snapshots) < KILLED_AT, "there was to be a checkpoint, without the last snapshot"
    # Files of later snapshots by the killed run must not be mistaken for the resumed run's.
    (killed / MEMBERS / "frozen.main@9.safetensors").write_bytes(b"of another run")
    resume(saved_often(ENV_STEPS), killed)
    train(saved_often(ENV_STEPS), whole)
    assert_equal(kept(killed), kept(whole))
    assert_equal(without_times(reports(killed)), without_times(reports(whole)))
    files = [{path.name: path.read_bytes() for path in (run / MEMBERS).iterdir()} for run in (killed, whole)]
    assert files[0] == files[1]
    assert len(files[0]) > KILLED_AT
