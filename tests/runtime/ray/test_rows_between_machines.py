from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

pytestmark = pytest.mark.slow


def test_rows_move_from_the_workers_machine_to_the_learners_and_not_to_the_drivers() -> None:
    program = [sys.executable, "-m", "tests.runtime.ray.rows_between_machines"]
    with tempfile.TemporaryDirectory() as folder:  # or whoever starts a Ray on this machine would join the cluster
        apart = {**os.environ, "RAY_TMPDIR": folder}
        ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300, env=apart)
    assert ran.returncode == 0, ran.stderr
    rows, received = json.loads(ran.stdout)
    # Four observations, action, reward and version of a row take more than this many bytes.
    assert received["learning"] > 30 * rows > 0
    assert received["sampling"] > 30 * rows
    # The store of the driver's machine gets neither rows nor references' contents.
    assert received["driver"] < rows
