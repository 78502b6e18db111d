"""Which processes of the tests' Ray are actors of a run."""

from __future__ import annotations

import psutil

EXIT_S = 60


def actor_processes() -> list[psutil.Process]:
    """Those of learners, replays, rollout workers and the inference actor."""
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
