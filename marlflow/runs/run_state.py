"""The state of a run: written to state.json by its process, and read together with the lock of its folder."""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, Literal, TypeAlias, get_args

from filelock import FileLock, Timeout

from marlflow.base.errors import MarlflowError, StageFailed, UserCodeFailed
from marlflow.base.files import replacing

log = logging.getLogger("marlflow")

LOCK: Final = ".lock"
"""The file in a run's folder that its process locks."""
STATE: Final = "state.json"
"""The file in a run's folder with its state."""
STOP: Final = "stop_requested"
"""The file in a run's folder that asks it to stop."""
_FORMAT = "marlflow run state 1"
_LONGEST_REASON = 600

StateName: TypeAlias = Literal["running", "finished", "interrupted", "failed", "unknown"]
LOST: Final = "its process ended without a word: it was killed, or its machine was lost"
"""The reason of a run that is not running, and did not write how it ended."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run, the reason of its end (empty while it runs), and its beginning (seconds since the epoch)."""

    name: StateName
    reason: str = ""
    since_s: float | None = None


UNKNOWN: Final = RunState("unknown")
"""The state of a run that wrote none, such as a run of an earlier version."""


def write_state(run_dir: Path, name: StateName, reason: str = "") -> None:
    """Write the state of a run from now on; if it cannot be written, only the log says so.

    A request to stop was to the run as it was before.
    """
    with suppress(OSError):
        (run_dir / STOP).unlink()
    values = {"format": _FORMAT, "state": name, "reason": reason, "since_s": time.time()}
    try:
        with replacing(run_dir / STATE) as path:
            path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        log.info("%s cannot be written: %s", run_dir / STATE, error)


def request_stop(run_dir: Path) -> None:
    """Ask the process of a run to stop and save, after its round; raises OSError, also if something else has the name.

    A file reaches exactly this run, on any machine: a process number may be that of another process by now, and one
    process may run several jobs of a sweep.
    """
    try:
        # Exclusively: not through a link that somebody has put there.
        os.close(os.open(run_dir / STOP, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        if not is_stop_requested(run_dir):
            raise


def is_stop_requested(run_dir: Path) -> bool:
    """Return whether a run is asked to stop."""
    return (run_dir / STOP).is_file()


def reason_of(error: BaseException) -> str:
    """Return the reason why an error ended a run, as one line; if the user's code caused it, its own error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, UserCodeFailed):
        cause = cause.__cause__
    if cause is not None:
        text = f"{cause.where}: {cause.reason}"
    elif isinstance(error, StageFailed) and error.__cause__ is not None:
        text = f"stage {error.stage} of {error.plan}: {type(error.__cause__).__name__}: {error.__cause__}"
    else:
        text = str(error) if isinstance(error, MarlflowError) else f"{type(error).__name__}: {error}"
    return shorten(text, _LONGEST_REASON, placeholder=" ...")


def run_state(run_dir: Path) -> RunState:
    """Return the state of a run; unknown if it wrote none, as runs of earlier versions.

    A run is running as long as a process has its folder's lock, which ends with the process.
    """
    written = _read(run_dir / STATE)
    if _is_locked(run_dir):
        return RunState("running", "", written.since_s if written.name == "running" else None)
    return RunState("interrupted", LOST) if written.name == "running" else written


def _read(path: Path) -> RunState:
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return UNKNOWN
    if (
        not isinstance(values, dict)
        or values.get("format") != _FORMAT
        or values.get("state") not in get_args(StateName)
    ):
        return UNKNOWN
    since_s = values.get("since_s")
    return RunState(
        values["state"], str(values.get("reason", "")), float(since_s) if isinstance(since_s, int | float) else None
    )


def _is_locked(run_dir: Path) -> bool:
    if not (run_dir / LOCK).is_file():
        return False
    lock = FileLock(run_dir / LOCK, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        # A folder of another user, or a file system without locks: trust the written state.
        return _read(run_dir / STATE).name == "running"
    lock.release()
    return False
