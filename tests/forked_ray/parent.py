"""Forks a worker of Ray for each that asks; see session.py.

    python -m tests.forked_ray.parent SOCKET

Ends when its standard input does, which is when whoever started it has ended.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

# What every process of a run loads, and libraries of Ray's; but not Ray itself: its connections do not outlive a fork.
import cloudpickle  # noqa: F401
import filelock  # noqa: F401
import google.protobuf.json_format
import google.protobuf.struct_pb2  # noqa: F401
import jsonschema  # noqa: F401
import msgpack  # noqa: F401
import requests  # noqa: F401
import tqdm  # noqa: F401
import yaml  # noqa: F401

import marlflow.algorithms.shipped
import marlflow.runtime.packing
import marlflow.runtime.protocol
import marlflow.runtime.relocation
import marlflow.runtime.rounds
import marlflow.runtime.sampling_worker
import marlflow.runtime.sharding
import marlflow.runtime.stage_chain
import marlflow.sampling.hang_monitor
import marlflow.sampling.messages
import marlflow.sampling.output
import marlflow.sampling.worker  # noqa: F401


def asked_of(there: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Words, environment and folder of the worker to be; and its standard input, output and error."""
    _, streams, _, _ = socket.recv_fds(there, 1, 3)
    with there.makefile("rb") as sent:
        return json.loads(sent.read()), streams


def fork_for_each(door: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns in each worker what it is to be; and None in this process, when nobody can ask any more."""
    while sys.stdin.fileno() not in select.select([sys.stdin.fileno(), door], [], [])[0]:
        there, _ = door.accept()
        with there:
            wanted, streams = asked_of(there)
            if os.fork() == 0:
                return wanted, streams
            for stream in streams:
                os.close(stream)
    return None


def become(wanted: dict[str, Any], streams: list[int]) -> None:
    """Does what Python would do if it had been started with these words."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    sys.argv = wanted["words"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


def main(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they end this
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        forked = fork_for_each(door)
    if forked is not None:
        become(*forked)


if __name__ == "__main__":
    main(sys.argv[1])
