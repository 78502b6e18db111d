"""Faults of Ray itself and of the machine, which faults.py writes as a separate table.

Each is provoked in a run over Ray in its own process. A row also has the seconds from the fault to the end of the
process, and the number of the run's processes that were left then.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import psutil

from benchmarks.killed_drivers import SETTINGS, Command, started

WORDS = ("train", *SETTINGS, "runtime=ray", "hydra.run.dir=run", "checkpoint.every_env_steps=100000000")
ENDLESS = "stop.env_steps=900000000"
HEAD = (
    "",
    "## Ray itself, and the machine",
    "",
    "Provoked by [ray_faults.py](ray_faults.py), each in a run over Ray in its own process.",
    "",
    "| Fault | Message | Seconds to the end | Processes left | What is lost | Setting |",
    "|---|---|---|---|---|---|",
)
SLEEP_S = 60.0


@dataclass(frozen=True)
class RayFault:
    """A row of the table: `provoke` is called when the run has printed `when`; `says` is a pattern."""

    what: str
    provoke: Callable[[Command], None]
    says: str
    lost: str
    setting: str
    words: tuple[str, ...] = (ENDLESS,)
    environment: Mapping[str, str] = field(default_factory=dict)
    when: str | None = " 1,000 env steps"


def nothing(command: Command) -> None:
    """Do nothing: the run fails without help."""


def kills(name: str) -> Callable[[Command], None]:
    """Return a function that kills the process of this name."""

    def kill(command: Command) -> None:
        (found,) = (helper for helper in command.helpers() if helper.name() == name)
        found.kill()

    return kill


def signals(number: signal.Signals) -> Callable[[Command], None]:
    """Return a function that sends a signal to the driver's process group."""
    return lambda command: command.send(number, group=True)


def sleeps(command: Command) -> None:
    """Stop all processes at once for as long as Ray's own deadlines, then let them continue."""
    all_processes = [psutil.Process(command.pid), *command.helpers()]
    for process in all_processes:
        process.suspend()
    time.sleep(SLEEP_S)
    for process in all_processes:
        process.resume()


ERROR_AND_HOW = r"^error: .*|^to resume from .*|^there is no checkpoint.*"
ORDERLY = r"^finishing.*|^stopping: .*|^to resume from .*"
KEPT = "nothing"
FAULTS = [
    RayFault("Ray's raylet is killed", kills("raylet"), ERROR_AND_HOW, "everything after the last checkpoint",
             "`checkpoint.every_env_steps`"),
    RayFault("Ray's control service (GCS) is killed", kills("gcs_server"), ERROR_AND_HOW,
             "everything after the last checkpoint", "`checkpoint.every_env_steps`"),
    RayFault("SIGTERM to the process group (`timeout`, Slurm, a container's stop)", signals(signal.SIGTERM), ORDERLY,
             KEPT, "`stop.grace_period_s: 30`"),
    RayFault("SIGHUP: the terminal is closed", signals(signal.SIGHUP), ORDERLY, KEPT, "`stop.grace_period_s: 30`"),
    RayFault(f"All processes are stopped for {SLEEP_S:g} s, as when a machine sleeps", sleeps, r"^stopping: .*",
             "nothing: the run continues", "none", ("stop.env_steps=4000",)),
    RayFault("The folder of Ray's sessions cannot be used", nothing, ERROR_AND_HOW, "nothing: the run did not start",
             "`RAY_TMPDIR`", environment={"RAY_TMPDIR": "/proc/1"}, when=None),
    RayFault("RAY_ADDRESS names a cluster that is gone", nothing, ERROR_AND_HOW, "nothing: the run did not start",
             "`runtime.address=local`", ("stop.env_steps=1000",), {"RAY_ADDRESS": "127.0.0.1:1"}, when=None),
]  # fmt: skip

BY_HAND = (
    "",
    "Provoked by hand, because they need a separate machine, or take minutes:",
    "",
    "| Fault | Message | What was lost | Setting |",
    "|---|---|---|---|",
    "| /dev/shm is full (in a mount namespace, filled during a run) | `` error: Ray's raylet, process 20713, was ended "
    "(SIGBUS): perhaps because /dev/shm, which holds rows and weights on their way, is full ``<br>`` to resume from "
    "200 env steps: marlflow resume .../run `` | everything after the last checkpoint; no process was left | "
    "`runtime.object_store_bytes` |",
    "| Memory runs out while the run starts (`RAY_memory_usage_threshold` below what is in use) | `` error: a process "
    "of the run died while it started: 2 worker(s) were killed due to the node running low on memory. Memory on the "
    "node was 7.45GB used / 23.54GB limit `` | nothing: the run did not start; no process was left | "
    "`rollouts.num_workers` |",
    "| The folder of Ray's session is deleted during a run | the run went on to its end | nothing | `RAY_TMPDIR` |",
    "| An environment computes in C and keeps Python's lock (`sum(range(10**13))` in `step()`), over Ray | `` "
    "WARNING: rollout worker 0 has not been heard from for 30 s: its process is stopped, or code in C, of an "
    "environment for example, keeps Python's lock there; nothing ends that; env.step_timeout_s=<seconds> would "
    "`` | nothing: the round waits, `stop.time_s` does not end it, and this is said again after 60 s, 120 s and "
    "so on; Ctrl-C ends the run after `stop.grace_period_s` | `env.step_timeout_s` |",
    "| The same with `env.step_timeout_s=5` | after 10 s: `` rollout worker 0: it died and is replaced; "
    "workers_lost 1, and faults.workers_lost allows 100 `` | its round and its episodes | `faults.workers_lost: "
    "100` |",
    "| The same with `runtime=inline` | nothing, with or without `env.step_timeout_s`: no other code in Python "
    "can run in that process, Ctrl-C included; `kill -9` ends it | everything "
    "after the last checkpoint | `runtime=ray` |",
)


def line(fault: RayFault) -> str:
    """Return a fault's row of the table; raises ValueError if the output does not match."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, fault.environment):
        with started([*WORDS, *fault.words], Path(folder)) as command:
            if fault.when is not None:
                command.wait_for(fault.when)
                command.send(signal.SIGCONT)  # so that its processes are remembered
            family = command.family
            fault.provoke(command)
            began_s = time.perf_counter()
            command.ends()
            took_s = time.perf_counter() - began_s
            left = [process for process in family if process.is_running()]
        said = "\n".join(command.said).replace(os.path.realpath(folder), "...")
    found = list(dict.fromkeys(text.strip() for text in re.findall(fault.says, said, re.M)))
    if not found:
        raise ValueError(f"{fault.what}: nothing that was said matches {fault.says}:\n{said}")
    words = "<br>".join(f"`` {text} ``" for text in found).replace("|", "\\|")
    took = "" if fault.when is None else f"{took_s:.0f}"
    return f"| {fault.what} | {words} | {took} | {len(left)} | {fault.lost} | {fault.setting} |"


def lines() -> Iterator[str]:
    """Yield the lines of the tables, with their headings."""
    yield from HEAD
    yield from map(line, FAULTS)
    yield from BY_HAND
