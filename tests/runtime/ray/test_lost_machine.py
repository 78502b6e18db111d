"""A machine is lost, the run goes on with the others, and its worker takes part again when another machine comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_a_run_outlives_one_of_its_machines(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.runtime.ray.lost_machine", str(tmp_path)]
    with tempfile.TemporaryDirectory() as folder:  # or whoever starts a Ray on this machine would join the cluster
        apart = {**os.environ, "RAY_TMPDIR": folder}
        ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300, env=apart)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["stopped_by"] == "whole again"
    assert found["took_part"] == [[0, 1], [0], [0, 1]]
    assert {kind: count for kind, count in found["faults"].items() if count} == {"workers_lost": 1}
    assert any((tmp_path / "checkpoints").iterdir())
