"""A driver that is killed takes everything that it started with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

ENDS_WITHIN_S = 15
MEMORY = Path("/dev/shm")

DRIVER = """
from marlflow.runtime.ray import RayRuntime
from tests.runtime.driven_runs import driven
from tests.runtime.small_runs import small_run

with driven(small_run("ray"), RayRuntime(object_store_bytes=100 * 2**20)) as run:
    run.play(2)
    assert run.runtime.object_store_bytes() is not None
    print("playing", flush=True)
    input()
"""


def test_nothing_is_left_of_a_driver_that_was_killed() -> None:
    before = set(MEMORY.iterdir())
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    try:
        assert driver.stdout.readline() == "playing\n"
        started = psutil.Process(driver.pid).children(recursive=True)
        assert any("ray::RolloutActor" in " ".join(process.cmdline()) for process in started)
        assert {"ray::DashboardAgent", "ray::RuntimeEnvAgent"} <= {process.name() for process in started}
    finally:
        driver.kill()
        driver.wait()
        driver.stdin.close()
        driver.stdout.close()
    _, left = psutil.wait_procs(started, timeout=ENDS_WITHIN_S)
    assert not left, f"{ENDS_WITHIN_S} s after the driver was killed these are still there: {left}"
    assert set(MEMORY.iterdir()) <= before
