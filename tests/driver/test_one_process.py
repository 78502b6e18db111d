"""Two processes never run in one directory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

import marlflow as mf
from marlflow.driver.checkpointing import only_process_in
from marlflow.runs.run_state import LOCK
from tests.runtime.small_runs import small_run

HOLDS = """
import sys
from pathlib import Path
from marlflow.driver.checkpointing import only_process_in
with only_process_in(Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.read()
"""


def test_a_run_does_not_go_on_while_another_process_is_at_it(tmp_path: Path) -> None:
    mf.train(small_run(env_steps=160), tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    more = small_run(stop=mf.Stop(env_steps=320))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "holds\n"
        with pytest.raises(mf.ConfigInvalid, match=f"another process is running in {tmp_path}; wait for its end"):
            mf.resume(more, tmp_path)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
        other.kill()  # which lets go of the directory, as whatever ends a process does
    assert mf.resume(more, tmp_path).metrics["env_steps"] == 320


def test_who_only_reads_the_state_of_a_run_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = FileLock(tmp_path / LOCK)
    reader.acquire()
    # The reader is done by the time of the second attempt.
    monkeypatch.setattr(time, "sleep", lambda seconds: reader.release())
    with only_process_in(tmp_path):
        assert not reader.is_locked


def test_the_directory_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with only_process_in(tmp_path):
            assert [path.name for path in tmp_path.iterdir()] == [LOCK]
