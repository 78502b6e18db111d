"""A Ray whose workers are forks of one process that has imported PyTorch and marlflow.

Imports are most of what an actor of a small run costs: each process of its own takes two seconds of a core for them,
and the tests start some hundreds. So while a Ray is started as here, it is told of another Python. That one asks
`parent.py` to fork instead of starting a worker, and is Python for all else. A worker then is a process as any other,
which connects, computes, dies and is found by Ray as always; only what it imports at its start is not tried.
Tests of the command line and of the examples try that: their Ray starts as a user's does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_HERE = Path(__file__).resolve().parent
_EXIT_S = 60
_PYTHON = """\
#!/bin/sh
case " $* " in
    *"/default_worker.py "*) exec "{python}" -I -S "{ask}" "$@" ;;
    *) exec "{python}" "$@" ;;
esac
"""


class Forks:
    """The process that is forked, and the Python that asks it."""

    def __init__(self, process: psutil.Process, python: Path) -> None:
        self.process = process
        self._python = python

    @contextmanager
    def starting(self) -> Iterator[None]:
        """A Ray that is started meanwhile, or a machine of it, has its workers forked."""
        real, sys.executable = sys.executable, str(self._python)
        try:
            yield
        finally:
            sys.executable = real


@contextmanager
def forked_workers() -> Iterator[Forks]:
    """Until it is left, a Ray that was started as `Forks.starting` says can start workers."""
    with tempfile.TemporaryDirectory() as folder:
        socket, python = Path(folder, "socket"), Path(folder, "python")
        python.write_text(_PYTHON.format(python=sys.executable, ask=_HERE / "ask.py"), encoding="utf-8")
        python.chmod(0o755)
        os.environ["FORKED_RAY_SOCKET"] = str(socket)  # Ray's processes inherit it
        command = [sys.executable, "-m", "tests.forked_ray.parent", str(socket)]
        with subprocess.Popen(
            command, cwd=_HERE.parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdin is not None
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n", "what workers are forked from did not start; see above"
            try:
                yield Forks(psutil.Process(parent.pid), python)
            finally:
                parent.stdin.close()
                assert parent.wait(_EXIT_S) == 0
                del os.environ["FORKED_RAY_SOCKET"]
