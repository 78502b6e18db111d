"""The template: imports what workers need, then forks a worker for each `worker.py` that connects.

    python parent.py LISTENING_SOCKET FOLDER_OF_MARLFLOW

Its standard input has the sessions of Ray's daemons, one in a line. When it ends, the driver has ended: the template
then kills every process of these sessions and of its own, and ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

# Libraries that Ray imports, but not Ray itself: its connections do not outlive a fork.
_LIBRARIES = (
    "cloudpickle",
    "filelock",
    "google.protobuf.json_format",
    "google.protobuf.struct_pb2",
    "jsonschema",
    "msgpack",
    "requests",
    "tqdm",
    "yaml",
    "torch",
)
# The modules that every process of a run imports.
_MODULES = (
    "marlflow.algorithms.shipped",
    "marlflow.runtime.forked.template",
    "marlflow.runtime.protocol",
    "marlflow.runtime.sampling_worker",
)
_OOM_SCORE = "RAY_worker_oom_score_adjustment"


def preload(marlflow_root: str) -> None:
    """Import the modules that workers need; marlflow from the driver's path."""
    # The objects of the imports live as long as the process; collections in forks would copy their memory.
    gc.disable()
    # Without this script's folder, and without the driver's, whose modules could have the names of libraries.
    del sys.path[0]
    for name in _LIBRARIES:
        # Another version of Ray may need fewer. Each worker imports missing modules itself.
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    sys.path.insert(0, marlflow_root)
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def fork_for_each(door: socket.socket) -> tuple[dict[str, Any], list[int]] | list[int]:
    """Return the request and the standard streams in each fork; in the template, the sessions once the driver ends."""
    driver, said = sys.stdin.fileno(), b""
    while True:
        ready = select.select([driver, door], [], [])[0]
        if driver in ready:
            said += (read := os.read(driver, 4096))
            if not read:
                return [int(line) for line in said.splitlines()]
        if door not in ready:
            continue
        there, _ = door.accept()
        # OSError: the process that asked was killed.
        with there, suppress(OSError):
            _, streams, _, _ = socket.recv_fds(there, 1, 3)
            with there.makefile("rb") as sent:
                request = sent.read()
            if request and os.fork() == 0:
                # Before the worker registers: when one ends, Ray kills the process group that it finds it in.
                os.setpgid(0, 0)
                there.close()
                door.close()
                return json.loads(request), streams
            for stream in streams:
                os.close(stream)
            there.sendall(b".")


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Run as Python does with these arguments."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    # As Ray does for its own processes: if memory runs out, workers are killed first.
    Path("/proc/self/oom_score_adj").write_text(os.environ.get(_OOM_SCORE, "1000"), encoding="ascii")
    reseed()
    sys.argv = request["words"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


def reseed() -> None:
    """Seed numpy's global generator by the system, as at the start of a process; Python does so with its own."""
    import numpy as np

    # An environment that uses it would otherwise draw the same numbers in each worker.
    np.random.seed()  # noqa: NPY002  the global generator is meant


def main() -> None:
    """Import, and fork until the driver has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers are not waited for
    with socket.socket(fileno=int(sys.argv[1])) as door:
        preload(sys.argv[2])
        folder = Path(door.getsockname()).parent
        forked = fork_for_each(door)
    if isinstance(forked, tuple):
        become(*forked)
    else:
        # The driver was killed; otherwise it would have ended this process and removed the folder itself.
        from marlflow.runtime.forked.template import kill_sessions

        kill_sessions([*forked, os.getsid(0)])
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
