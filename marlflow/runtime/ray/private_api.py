"""Ray's private API, which may change with every version of Ray: all uses of it, tried with Ray 2.60.0.

The private arguments of ray.init are in `local_ray`, and forked/worker.py knows where Ray's script of workers is.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]
import ray
from ray._private import ray_constants, services, utils, worker
from ray._private.authentication.authentication_token_generator import generate_new_authentication_token
from ray._private.internal_api import get_memory_info_reply
from ray._private.node import Node
from ray._private.state import available_resources_per_node
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.experimental import internal_kv

from marlflow.runtime.forked.template import WORKER, Template

__all__ = ["generate_new_authentication_token"]

log = logging.getLogger("marlflow")

_NAMESPACE = b"marlflow"
_STORE_TIMEOUT_S = 5.0


def own_node() -> Any:
    """Return the Node of this process: Ray's daemons that it has started, or joined; None without any."""
    return worker._global_node


def free_resources() -> list[dict[str, float]]:
    """Return the free resources of each machine."""
    return list(available_resources_per_node().values())  # type: ignore[no-untyped-call]


def machines_cluster() -> str | None:
    """Return the address of the cluster that `ray start` made this machine part of."""
    address: str | None = services.find_bootstrap_address(None)
    return address


def running_clusters() -> list[str]:
    """Return the addresses of all clusters with a process on this machine."""
    return sorted(services.find_gcs_addresses())  # type: ignore[no-untyped-call]


def missing_for_dashboard() -> Any:
    """Return the error of an import that the dashboard needs; None if nothing is missing."""
    return utils.get_dashboard_dependency_error()


def accepts_token(gcs_address: str) -> bool:
    """Return whether the cluster lets this user in."""
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


def object_store_bytes() -> int | None:
    """Return the bytes in the object stores of all machines; None if unknown."""
    # One raylet asks all others: about 3 ms on one machine, too much for every round. Ray has no public API for this
    # number but its dashboard's.
    node = own_node()
    if node is None:
        return None
    # Named, since Ray would ask the GCS for one: a call that nothing interrupts, 60 s long if the GCS was lost.
    raylet = (node.node_ip_address, node.node_manager_port)
    try:
        reply = get_memory_info_reply(None, *raylet, _STORE_TIMEOUT_S)  # type: ignore[no-untyped-call]
    except grpc.RpcError:
        return None
    return int(reply.store_stats.object_store_bytes_used)


def dashboard_url() -> str | None:
    """Return the address of the dashboard of the Ray that this process has started, if it has one."""
    node = own_node()
    url = None if node is None else node.webui_url
    return f"http://{url}" if url else None


def log_raylets_messages() -> Callable[[], None]:
    """Log what raylets say of lost processes and machines, which may be pages; return what shows it on the terminal."""
    show = worker.print_to_stdstream

    def log_or_show(data: Any, *arguments: Any, **named: Any) -> None:
        if data.get("pid") == "raylet":
            log.info("Ray's raylet: %s", "\n".join(map(str, data["lines"])))
        else:
            show(data, *arguments, **named)

    setattr(worker, "print_to_stdstream", log_or_show)  # noqa: B010  mypy lets no function be assigned to
    return partial(setattr, worker, "print_to_stdstream", show)


# Ray's key-value store, for all processes of the cluster.
store = partial(internal_kv._internal_kv_put, namespace=_NAMESPACE)
stored = partial(internal_kv._internal_kv_get, namespace=_NAMESPACE)
is_stored = partial(internal_kv._internal_kv_exists, namespace=_NAMESPACE)
forget = partial(internal_kv._internal_kv_del, namespace=_NAMESPACE)
stored_keys = partial(internal_kv._internal_kv_list, namespace=_NAMESPACE)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make Ray start as on macOS and Windows, where its servers listen on 127.0.0.1 only."""
    # Ray reads RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, which would do this, only when it is imported.
    original = ray_constants.ENABLE_RAY_CLUSTER
    setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # noqa: B010  it is annotated as what the variable says
    try:
        yield
    finally:
        setattr(ray_constants, "ENABLE_RAY_CLUSTER", original)  # noqa: B010


@contextmanager
def in_new_sessions(template: Template | None) -> Iterator[list[Any]]:
    """Make each process that Ray starts lead a new session, which `template` ends; collect them in the list."""
    daemons: list[Any] = []
    original: Any = services.ConsolePopen

    class InOwnSession(original):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, start_new_session=True, **options)
            daemons.append(self)
            if template is not None:
                template.guard(self.pid)

    if utils.detect_fate_sharing_support():  # type: ignore[no-untyped-call]
        # Ray has no setting for it. Elsewhere (macOS) Ray ends its processes through the driver's process group, in
        # which they have to stay.
        setattr(services, "ConsolePopen", InOwnSession)  # noqa: B010  mypy lets no class be assigned to
    try:
        yield daemons
    finally:
        setattr(services, "ConsolePopen", original)  # noqa: B010


@contextmanager
def without_daemons(starts: Sequence[str]) -> Iterator[None]:
    """Make these methods of Ray's Node start nothing."""
    originals = {name: getattr(Node, name) for name in starts}
    try:
        for name in starts:
            # ray.init has no settings for them.
            setattr(Node, name, lambda *_arguments, **_options: None)
        yield
    finally:
        for name, original in originals.items():
            setattr(Node, name, original)


@contextmanager
def forking(template: Template | None) -> Iterator[None]:
    """Make a raylet that is started meanwhile have its workers forked from the template."""
    if template is None:
        yield
        return
    original: Any = Node.start_raylet

    def start_raylet(node: Any, *arguments: Any, **options: Any) -> None:
        # ray.init has no setting for it.
        node._ray_params.worker_path = str(WORKER)
        original(node, *arguments, **options)

    setattr(Node, "start_raylet", start_raylet)  # noqa: B010  as above
    try:
        with template.for_workers():
            yield
    finally:
        setattr(Node, "start_raylet", original)  # noqa: B010


@contextmanager
def without_signal_handlers() -> Iterator[None]:
    """Make Ray leave Python's SIGTERM handler in place, so that the run ends gracefully.

    Ray's handler would end the process by SystemExit, or kill Ray first.
    """
    original = utils.set_sigterm_handler
    # Ray has no setting for it.
    setattr(utils, "set_sigterm_handler", _keep_sigterm_handler)  # noqa: B010  as above
    try:
        yield
    finally:
        setattr(utils, "set_sigterm_handler", original)  # noqa: B010


def _keep_sigterm_handler(_: object) -> None:
    # Install Python's handler again: Ray's C++ code has replaced it meanwhile, and would abort the process.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
