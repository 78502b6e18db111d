"""Start the template, from which the worker processes of a private Ray are forked, and end whole sessions of processes.

Most of the time to start an actor goes into imports: two seconds of a core for each. The template imports PyTorch and
marlflow once, while the driver does, and each worker is a fork of it. To Ray, a fork is an ordinary worker process: it
connects, computes and ends as usual. Forks also share the memory of the imported modules.

Ray starts `worker.py` instead of its own script. `worker.py` asks `parent.py`, the template, for a fork, and becomes an
ordinary worker itself if the template has ended.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET_VARIABLE = "MARLFLOW_WORKER_TEMPLATE"
SWITCH_VARIABLE = "MARLFLOW_FORKED_WORKERS"
"""With the value 0, each worker imports for itself, as Ray would have it."""
WORKER = Path(__file__).with_name("worker.py")
"""The script that Ray starts for each worker, in place of its own."""

_PARENT = Path(__file__).with_name("parent.py")
_MARLFLOW = Path(__file__).parents[3]
# The name of a socket has at most 107 characters.
_LONGEST_FOLDER = 80
_begun: list[Template] = []


class Template:
    """A running template. It leads its own session, and ends when it is closed or this process ends."""

    def __init__(self) -> None:
        # Only this user can enter the socket's folder: a process that connects gets a process of this user.
        folder = tempfile.gettempdir()
        self._folder = tempfile.mkdtemp(prefix="marlflow-", dir=folder if len(folder) <= _LONGEST_FOLDER else "/tmp")
        self._socket = Path(self._folder, "socket")
        # Bound here, so that workers that connect while the template imports wait for it.
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self._socket))
            door.listen(1024)
            self._process = subprocess.Popen(
                [sys.executable, str(_PARENT), str(door.fileno()), str(_MARLFLOW)],
                pass_fds=[door.fileno()],
                # It ends when this pipe is closed, which the kernel does if this process is killed.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                # Libraries read it when they are imported. A learner sets its number of threads by itself.
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
        atexit.register(self.close)

    @property
    def session(self) -> int:
        """The session that the template leads, with all workers."""
        return self._process.pid

    def guard(self, session: int) -> None:
        """Let the template kill a session, and its own, when this process is killed."""
        assert self._process.stdin is not None
        # The template may have been killed; then no process does it.
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{session}\n".encode())
            self._process.stdin.flush()

    @contextmanager
    def for_workers(self) -> Iterator[None]:
        """Let a raylet that is started meanwhile find the template."""
        before = os.environ.get(SOCKET_VARIABLE)
        os.environ[SOCKET_VARIABLE] = str(self._socket)
        try:
            yield
        finally:
            del os.environ[SOCKET_VARIABLE]
            if before is not None:
                os.environ[SOCKET_VARIABLE] = before

    def close(self) -> None:
        """End the template; its forks continue until their raylet or their session ends."""
        atexit.unregister(self.close)
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def is_available() -> bool:
    """Return whether workers are forked here: elsewhere than on Linux, system libraries may not survive it."""
    return sys.platform == "linux" and os.environ.get(SWITCH_VARIABLE) != "0"


def begin() -> None:
    """Start a template for the next private Ray of this process, so that both import at the same time."""
    if is_available() and not _begun:
        _begun.append(Template())


def taken() -> Template | None:
    """Return the template that was begun, or a new one; None where workers cannot be forked."""
    begin()
    return _begun.pop() if _begun else None


def discard() -> None:
    """End a template that was begun and is not needed."""
    while _begun:
        _begun.pop().close()


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
