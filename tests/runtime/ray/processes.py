"""Which processes of the tests' Ray are actors of a run, and programs with a Ray of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import psutil

EXIT_S = 60


def actor_processes() -> list[psutil.Process]:
    """The processes of learners, replays, rollout workers and the inference actor."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if title.startswith(("ray::Host", "ray::RolloutActor", "ray::InferenceActor")):
            found.append(process)
    return found


def assert_no_actor_is_left() -> None:
    """All of them end; Ray kills actors without waiting for their processes."""
    _, left = psutil.wait_procs(actor_processes(), timeout=EXIT_S)
    assert not left, f"{EXIT_S} s later these actors are still there: {left}"


def printed_by(module: str, *words: str) -> str:
    """The output of a module of tests.runtime.ray, which must succeed."""
    program = [sys.executable, "-m", f"tests.runtime.ray.{module}", *words]
    with tempfile.TemporaryDirectory() as folder:  # or whoever starts a Ray on this machine would join the cluster
        apart = {**os.environ, "RAY_TMPDIR": folder}
        ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300, env=apart)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
