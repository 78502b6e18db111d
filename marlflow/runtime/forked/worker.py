"""The program of each of Ray's workers: asks the template for a fork, else becomes the worker itself. See template.py.

It runs before anything is imported, so it imports little.
"""

import json
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path


def forked(path: str, words: list[str]) -> bool:
    """Have the template fork a worker with this process's arguments, environment, folder and streams."""
    try:
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(path)
            socket.send_fds(there, [b"."], [0, 1, 2])
            there.sendall(json.dumps({"words": words, "environment": dict(os.environ), "folder": os.getcwd()}).encode())
            there.shutdown(socket.SHUT_WR)
            return there.recv(1) == b"."
    except OSError:
        return False


def main() -> None:
    """Start a worker of Ray's with this process's arguments."""
    found = find_spec("ray")
    assert found is not None
    assert found.origin is not None
    # The same script in another process: Ray has no other way to choose how a worker starts.
    script = str(Path(found.origin).with_name("_private") / "workers" / "default_worker.py")
    words = [script, *sys.argv[1:]]
    if not forked(os.environ.get("MARLFLOW_WORKER_TEMPLATE", ""), words):
        os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main()
