"""A Ray of the run's own on this machine: started out of reach of the driver's signals, and ended to the last process.

A shell, `timeout`, Slurm or a container's stop send SIGTERM, and a terminal SIGINT and SIGHUP, to the driver's whole
process group. Ray's processes have to survive that, because the driver needs them to finish its round and to take a
checkpoint. So each of Ray's daemons leads a session of its own, in which its own children stay. The kernel still kills
the daemons when the driver dies (PR_SET_PDEATHSIG, which Ray sets).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray._private import services, utils
from ray._private.utils import detect_fate_sharing_support

from marlflow.base.errors import RuntimeFailed

_QUIET_AGENTS = {"enable_pipe_based_agent_to_parent_health_check": False}
"""Ray's agents then notice after 2 s that their raylet is lost, not at once: when the run has ended, and has said so.

They would print the last lines of the raylet's log into the run's output.
"""


def start_local(**settings: Any) -> list[int]:
    """Starts Ray on this machine with these settings of ray.init; returns the sessions of its processes.

    Raises RuntimeFailed if it does not start; no process of it is left then.
    """
    with _in_sessions_of_their_own() as started:
        try:
            # `local` means a new one, whatever RAY_ADDRESS says and whatever other clusters there are.
            ray.init(address="local", _system_config=_QUIET_AGENTS, **settings)
        except BaseException as error:
            kill_sessions([process.pid for process in started])
            if not isinstance(error, Exception):  # interrupted
                raise
            ray.shutdown()
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise RuntimeFailed(
                f"Ray could not be started: {reason}; see that the folder of its sessions ({sessions_folder()}), "
                "/dev/shm and the network ports of this machine can be used, or choose runtime=inline"
            ) from error
        return [process.pid for process in started]


def sessions_folder() -> str:
    """Where Ray keeps the sockets and logs of its sessions."""
    return os.path.join(os.environ.get("RAY_TMPDIR", "/tmp"), "ray")


def kill_sessions(sessions: Collection[int]) -> None:
    """Kills every process of these sessions: Ray's daemons and all that they have started."""
    for process in [int(name) for name in os.listdir("/proc") if name.isdigit()] if sessions else []:
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process) in sessions:
                os.kill(process, signal.SIGKILL)


@contextmanager
def _in_sessions_of_their_own() -> Iterator[list[Any]]:
    """While this holds, each process that Ray starts leads a new session; they are collected in the list.

    Ray has no setting for it. Where the kernel does not end Ray's processes with the driver (macOS), Ray does so
    through the driver's process group, and nothing is changed.
    """
    started: list[Any] = []
    original: Any = services.ConsolePopen

    class InOwnSession(original):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, start_new_session=True, **options)
            started.append(self)

    if detect_fate_sharing_support():  # type: ignore[no-untyped-call]
        setattr(services, "ConsolePopen", InOwnSession)  # noqa: B010  mypy lets no class be assigned to
    try:
        yield started
    finally:
        setattr(services, "ConsolePopen", original)  # noqa: B010


@contextmanager
def without_signal_handlers() -> Iterator[None]:
    """While this holds, Ray that starts leaves Python's handler of SIGTERM as it is: the run's own ends it in order.

    Ray's would end the process by SystemExit, or kill Ray first. Ray has no setting for it.
    """
    original = utils.set_sigterm_handler
    setattr(utils, "set_sigterm_handler", _keep_sigterm_handler)  # noqa: B010  as above
    try:
        yield
    finally:
        setattr(utils, "set_sigterm_handler", original)  # noqa: B010


def _keep_sigterm_handler(_: object) -> None:
    """Sets the one there is once more: Ray's C++ has taken the signal meanwhile, and would abort the process."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
