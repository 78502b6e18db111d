"""A private Ray on this machine: on loopback, protected from the driver's signals, fully killed at the end.

Anyone who reaches a port of Ray and knows its token can run code here. So Ray listens on loopback unless another
address is configured, and only the user can read its token and session folder.

A shell, `timeout`, Slurm or a container's stop send SIGTERM, and a terminal SIGINT and SIGHUP, to the driver's whole
process group. Ray has to survive that, because the driver needs it to finish the round and to save a checkpoint. So
each Ray daemon leads its own session. The kernel still kills the daemons with the driver (PR_SET_PDEATHSIG), and the
template kills all that is left of their sessions: Ray's agents, and workers that were just starting.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from marlflow.base.errors import ConfigInvalid, RuntimeFailed
from marlflow.runtime.forked.template import Template, kill_sessions, taken
from marlflow.runtime.ray.private_api import (
    forking,
    generate_new_authentication_token,
    in_new_sessions,
    missing_for_dashboard,
    on_loopback,
    without_daemons,
)

log = logging.getLogger("marlflow")
_QUIET_AGENTS = {"enable_pipe_based_agent_to_parent_health_check": False}
"""Ray's agents notice the loss of their raylet 2 s later, after the run has ended.

Otherwise they would print the last lines of the raylet's log into the run's output.
"""


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A Ray that this process has started: the sessions of its processes, and the template of its workers, if any."""

    sessions: Sequence[int]
    template: Template | None

    def kill(self) -> None:
        """Kill every process of it: its daemons and everything they started."""
        kill_sessions(self.sessions)

    def close(self) -> None:
        """Shut it down, and end the processes that have not noticed it."""
        ray.shutdown()
        # First, so that it forks no more workers.
        if self.template is not None:
            self.template.close()
        # A worker that was starting has no connection yet, so it does not notice that its raylet has ended.
        self.kill()


_TIMED_OUT = "timed out during startup"
"""Ray's message if its daemons are not up after 30 s, as on a busy machine; no setting changes this limit."""


def start_local(node_ip_address: str | None = None, **settings: Any) -> LocalRay:
    """Start Ray on this machine with these settings of ray.init; its workers are forks where that is possible.

    With `node_ip_address`, other machines reach it there. Raises ConfigInvalid if that is not this machine's,
    RuntimeFailed if Ray does not start.
    """
    if node_ip_address is not None and not _is_local_address(node_ip_address):
        raise ConfigInvalid(
            [
                f"runtime.node_ip_address={node_ip_address} is no address of this machine; give one of its own, or "
                "null for a Ray that only this machine reaches"
            ]
        )
    if settings.get("include_dashboard") and (missing := missing_for_dashboard()) is not None:
        raise ConfigInvalid(
            [f"runtime.dashboard needs packages that are missing: {missing}; pip install 'ray[default]'"]
        )
    try:
        return _started(node_ip_address, settings)
    except RuntimeFailed as error:
        if _TIMED_OUT not in str(error):
            raise
        log.warning("%s; starting it once more", error)
    return _started(node_ip_address, settings)


def _started(node_ip_address: str | None, settings: dict[str, Any]) -> LocalRay:
    loopback = on_loopback() if node_ip_address is None else nullcontext()
    template = taken()
    # Daemons that no run uses; each is a Python process that imports for half a second of a core. The monitor starts
    # machines, and the log monitor sends what workers print.
    unused = [
        "start_monitor",
        "start_log_monitor",
        *([] if settings.get("include_dashboard") else ["start_api_server"]),
    ]
    with in_new_sessions(template) as daemons, loopback, without_daemons(unused), forking(template):
        try:
            _protect_token()
            # `local` always starts a new Ray, whatever RAY_ADDRESS says and whatever clusters are running.
            ray.init(
                address="local",
                _node_ip_address=node_ip_address,
                _temp_dir=str(_private_folder()),
                _system_config=_QUIET_AGENTS,
                logging_level=logging.ERROR,
                log_to_driver=False,
                **settings,
            )
        except BaseException as error:
            if template is not None:
                template.close()
            kill_sessions([process.pid for process in daemons])
            # KeyboardInterrupt or SystemExit.
            if not isinstance(error, Exception):
                raise
            ray.shutdown()
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise RuntimeFailed(
                f"Ray could not be started: {reason}; see that the folder of its sessions ({sessions_folder()}), "
                "/dev/shm and the network ports of this machine can be used, or choose runtime=inline"
            ) from error
    sessions = [process.pid for process in daemons]
    return LocalRay(sessions if template is None else [*sessions, template.session], template)


def sessions_folder() -> Path:
    """Return the folder in which this user's Ray keeps the sockets and logs of its sessions."""
    return Path(os.environ.get("RAY_TMPDIR", "/tmp")) / f"marlflow-{os.getuid()}" / "ray"


def _private_folder() -> Path:
    # Ray makes its folder, and all in it, writable for all users, so the parent folder has to be closed to them.
    folder = sessions_folder()
    closed = folder.parent
    with suppress(FileExistsError):
        closed.mkdir(mode=0o700)
    # lstat and the owner are checked, because another user may have put a link or a folder there.
    status = closed.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OSError(f"{closed} is not a folder of this user's")
    closed.chmod(0o700)
    return folder


def _protect_token() -> None:
    # Ray would create its default token readable by other users.
    token = Path.home() / ".ray" / "auth_token"
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    if token.is_file():
        if token.stat().st_uid == os.getuid():
            token.chmod(0o600)
    elif not ({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()):
        token.parent.mkdir(parents=True, exist_ok=True)
        # Another run may have written it meanwhile.
        with suppress(FileExistsError):
            descriptor = os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(generate_new_authentication_token())


def _is_local_address(address: str) -> bool:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as server:
            server.bind(where)
    except OSError:
        return False
    return True
