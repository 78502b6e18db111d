"""Join an existing Ray cluster, or fail within seconds if no Ray answers."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private import services
from ray._private.state import available_resources_per_node
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from marlflow.base.errors import ConfigInvalid
from marlflow.runtime.ray.local_ray import without_signal_handlers
from marlflow.runtime.resources import Machines

_ANSWERS_WITHIN_S = 5.0
_START = "start one with `ray start --head`, or set runtime.address=local to have one started for the run"
_TOKEN = (
    "set RAY_AUTH_MODE=token here, with the cluster's ~/.ray/auth_token on each of its machines, or start it again "
    "with RAY_AUTH_MODE=disabled where nobody else can reach it"
)
# The preface of an HTTP/2 client and an empty SETTINGS frame; a server answers with its own SETTINGS frame (type 4).
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_HEADER_BYTES, _SETTINGS = 9, 4


def join(address: str, *, logging_level: int, log_to_driver: bool) -> None:
    """Connect this process to the Ray cluster at `address`; raises ConfigInvalid if it cannot be joined.

    `auto` means RAY_ADDRESS, else the cluster that `ray start` made this machine part of. Ray's own `auto` also joins a
    Ray that another program started for itself and will shut down.
    """
    where = _default_address() if address == "auto" else address
    setting = "RAY_ADDRESS" if address == os.environ.get("RAY_ADDRESS") else "runtime.address"
    subject = f"{setting}={address}" if where == address else f"{setting}={address} ({where})"
    if match := re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", where):
        try:
            speaks = _speaks_http2(match[1], int(match[2]))
        except OSError as error:
            raise ConfigInvalid([f"{subject}: no Ray cluster answers there ({error}); {_START}"]) from None
        if not speaks:
            raise ConfigInvalid([f"{subject}: what answers there is not Ray; {_START}"])
        if not where.startswith("ray://") and not _accepts_token(where):
            raise ConfigInvalid([f"{subject}: this Ray cluster asks for a token, and does not know ours; {_TOKEN}"])
    try:
        ray.init(address=where, logging_level=logging_level, log_to_driver=log_to_driver)
    except Exception as error:
        # ray.init may have failed halfway.
        ray.shutdown()
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigInvalid(
            [
                f"{subject}: this Ray cluster could not be joined: {reason}; all its machines need the same versions "
                f"of Ray and Python, and this machine has to be one of them; else {_START}"
            ]
        ) from error


def _default_address() -> str:
    named = os.environ.get("RAY_ADDRESS")
    if address := (named if named != "auto" else None) or services.find_bootstrap_address(None):
        return address
    others = sorted(services.find_gcs_addresses())  # type: ignore[no-untyped-call]
    if not others:
        raise ConfigInvalid([f"runtime.address=auto: no Ray cluster is running on this machine; {_START}"])
    raise ConfigInvalid(
        [
            "runtime.address=auto: no `ray start` has made this machine part of a cluster, and what runs at "
            f"{', '.join(others)} belongs to another program, with which it ends; {_START}; to join it all the same, "
            f"set runtime.address={others[0]}"
        ]
    )


def _speaks_http2(host: str, port: int) -> bool:
    """Return whether a gRPC server, as Ray's are, answers; raises OSError if nothing does."""
    # With TLS only Ray has the certificates for more than opening a connection.
    if os.environ.get("RAY_USE_TLS", "0") == "1":
        socket.create_connection((host, port), _ANSWERS_WITHIN_S).close()
        return True
    with socket.create_connection((host, port), _ANSWERS_WITHIN_S) as server:
        server.sendall(_HTTP2_HELLO)
        header = server.recv(_HEADER_BYTES, socket.MSG_WAITALL)
    return len(header) == _HEADER_BYTES and header[3] == _SETTINGS


def _accepts_token(gcs_address: str) -> bool:
    # Ray itself would retry for half a minute. Its C++ code prints the error that is raised here.
    with _without_standard_error():
        try:
            GcsClient(address=gcs_address)
        except ray.exceptions.AuthenticationError:
            return False
        except ray.exceptions.RayError:
            # Joining reports any other error.
            return True
    return True


@contextmanager
def _without_standard_error() -> Iterator[None]:
    """Discard all output to standard error, C++ code's included."""
    sys.stderr.flush()
    original, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(nowhere)


def free_machines(address: str) -> Machines:
    """Return each machine's free resources; raises ConfigInvalid like `join`."""
    if ray.is_initialized():
        return _free()
    with without_signal_handlers():
        join(address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        return _free()
    finally:
        ray.shutdown()


def _free() -> Machines:
    free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    return Machines(list(free.values()), here=False, whole=ray.cluster_resources())  # type: ignore[no-untyped-call]
