"""Ends all processes of some sessions: those of a private Ray and its forked workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress


def kill_sessions(sessions: Collection[int]) -> None:
    """Kill every process of these sessions but this one: Ray's daemons and everything they started."""
    killed: set[int] = set()
    # Again until none is found: one that was just killed may have started another.
    while found := _processes_of(sessions) - killed:
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        killed |= found


def _processes_of(sessions: Collection[int]) -> set[int]:
    found = set()
    for process in [int(name) for name in os.listdir("/proc") if name.isdigit()] if sessions else []:
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process) in sessions and process != os.getpid():
                found.add(process)
    return found
