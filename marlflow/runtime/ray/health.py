"""Watch Ray itself during a run, so that the run ends within seconds if Ray is lost.

Ray alone would take minutes: it reports a dead raylet's actors one by one, and ends the driver silently when its
control service (GCS) has not answered for 60 s.
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
from collections.abc import Callable, Mapping

import ray

from marlflow.runtime.ray.private_api import own_node

log = logging.getLogger("marlflow")

DAEMON_POLL_S = 0.5
"""Seconds between two checks of this machine's daemons."""
CONNECT_POLL_S = 2.0
"""Seconds between two checks of a joined cluster's servers."""
MAX_FAILED_CONNECTS = 5
"""Failed connections in a row after which a server counts as lost: 10 to 20 s, since a GCS may restart."""
CONNECT_TIMEOUT_S = 2.0
PATIENCE_S = 20.0
"""Seconds that a run has to end after a loss, before the log says that it cannot: then it waits in a call of Ray's."""
_ESSENTIAL = {"raylet": "raylet", "gcs_server": "control service (GCS)"}

_KNOWN_CAUSES = {
    signal.SIGKILL: ": by a user, or by the kernel because memory ran out",
    signal.SIGBUS: ": perhaps because /dev/shm, which holds rows and weights on their way, is full",
    signal.SIGTERM: ": by a user or a scheduler that ends all processes of this machine or job",
}


class Watch:
    """Polls `find_loss` in a thread; calls `on_loss` once with its first result, which becomes `loss`.

    If it is not closed soon after, it logs the loss: Ray then ends the process, without a word of what happened.
    """

    def __init__(self, find_loss: Callable[[], str | None], on_loss: Callable[[str], None], every_s: float) -> None:
        self._find_loss = find_loss
        self._on_loss = on_loss
        self._every_s = every_s
        self._closed = threading.Event()
        self.loss: str | None = None
        self._thread = threading.Thread(target=self._poll_loop, name="marlflow-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join()

    def _poll_loop(self) -> None:
        while not self._closed.wait(self._every_s):
            if (loss := self._find_loss()) is not None:
                self.loss = loss
                self._on_loss(loss)
                if not self._closed.wait(PATIENCE_S):
                    log.error("%s, and Ray may end this run within a minute: marlflow resume goes on", loss)
                return


def dead_daemon() -> str | None:
    """Describe an essential Ray daemon of this process that has exited; None if all run."""
    node = own_node()
    for kind, process in [] if node is None else node.dead_processes():
        if kind in _ESSENTIAL:
            return f"Ray's {_ESSENTIAL[kind]}, process {process.pid}, {_ending(process.returncode)}"
    return None


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    number = signal.Signals(-code)
    verb = "killed" if number == signal.SIGKILL else "ended"
    return f"was {verb} ({number.name})" + _KNOWN_CAUSES.get(number, "")


class Endpoints:
    """The host and port of each server of a joined cluster, by name."""

    def __init__(self, servers: Mapping[str, tuple[str, int]]) -> None:
        self._failed = dict.fromkeys(servers, 0)
        self._servers = servers

    def unreachable(self) -> str | None:
        """Describe a server that failed MAX_FAILED_CONNECTS connections in a row; None if none did."""
        for name, server in self._servers.items():
            try:
                socket.create_connection(server, CONNECT_TIMEOUT_S).close()
                self._failed[name] = 0
            except OSError as error:
                self._failed[name] += 1
                if self._failed[name] >= MAX_FAILED_CONNECTS:
                    return f"Ray's {name} at {server[0]}:{server[1]} does not answer any more ({error})"
        return None


def joined_cluster(address: str) -> Endpoints:
    """Return the servers that a run depends on in a joined cluster."""
    node = own_node()
    # Connected through Ray's client server, which has no node here.
    if node is None:
        match = re.fullmatch(r"ray://([^/:]+):(\d+)", address)
        return Endpoints({"client server": (match[1], int(match[2]))} if match else {})
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    raylet = (node.node_ip_address, int(node.node_manager_port))
    return Endpoints({_ESSENTIAL["gcs_server"]: (host, int(port)), _ESSENTIAL["raylet"]: raylet})
