"""The state of a run in its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from marlflow.base.errors import ConfigInvalid, EnvironmentFailed, StageFailed
from marlflow.runs.run_state import LOCK, LOST, STATE, UNKNOWN, reason_of, run_state, write_state

_HOLDS = """
import sys
from pathlib import Path
from filelock import FileLock
from marlflow.runs.run_state import write_state
lock = FileLock(sys.argv[1] + "/.lock")
lock.acquire()
write_state(Path(sys.argv[1]), "running")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert run_state(tmp_path) is UNKNOWN
    write_state(tmp_path, "finished", "stop.env_steps=100")
    found = run_state(tmp_path)
    assert (found.name, found.reason) == ("finished", "stop.env_steps=100")
    assert sorted(path.name for path in tmp_path.iterdir()) == [STATE]


def test_a_run_is_running_as_long_as_its_process_lives(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        before = (tmp_path / LOCK).stat()
        assert run_state(tmp_path).name == "running"
        assert (tmp_path / LOCK).stat() == before
        process.kill()
    assert run_state(tmp_path).reason == LOST
    assert run_state(tmp_path).name == "interrupted"


def test_a_lock_in_this_process_counts_and_reading_leaves_none(tmp_path: Path) -> None:
    write_state(tmp_path, "running")
    with FileLock(tmp_path / LOCK, timeout=0):
        assert run_state(tmp_path).name == "running"
    assert run_state(tmp_path).name == "interrupted"
    with FileLock(tmp_path / LOCK, timeout=0):
        pass


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "marlflow run state 1", "state": "tired"}', "[" * 100_000]
)
def test_a_file_of_another_form_is_an_unknown_state(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE).write_text(text, encoding="utf-8")
    assert run_state(tmp_path) is UNKNOWN


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_of_another_user_has_what_is_written(tmp_path: Path) -> None:
    write_state(tmp_path, "running")
    (tmp_path / LOCK).touch(0o444)
    assert run_state(tmp_path).name == "running"


def test_a_state_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    write_state(tmp_path / "nowhere", "running")
    assert list(tmp_path.iterdir()) == []


def test_the_reason_is_one_line_of_the_first_cause() -> None:
    cause = EnvironmentFailed("environment tag, env 3", "step() raised ValueError: no", "Traceback\n  here")
    failed = StageFailed("Collect", "rollouts", "Collect -> Learn", "Traceback\n  there")
    failed.__cause__ = cause
    assert reason_of(failed) == "environment tag, env 3: step() raised ValueError: no"
    failed.__cause__ = ZeroDivisionError("by\nzero")
    assert reason_of(failed) == "stage Collect of rollouts: ZeroDivisionError: by zero"
    assert reason_of(ConfigInvalid(["one", "two"])).count("\n") == 0
    assert reason_of(OSError("x" * 10_000)).count("x") < 1000
