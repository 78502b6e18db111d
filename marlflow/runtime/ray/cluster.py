"""Join an existing Ray cluster, or fail within seconds if no Ray answers; reserve room for all processes of a run."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marlflow.base.errors import ConfigInvalid, Problems
from marlflow.runtime.ray.private_api import (
    accepts_token,
    free_resources,
    machines_cluster,
    running_clusters,
    without_signal_handlers,
)
from marlflow.runtime.resources import (
    BundleLayout,
    Machines,
    ResourceRequest,
    bundles,
    problems,
    requests_of,
    total,
    without_cuda,
)
from marlflow.runtime.spec import RunSpec

_ANSWERS_WITHIN_S = 5.0
_START = "start one with `ray start --head`, or set runtime.address=local to have one started for the run"
_TOKEN = (
    "set RAY_AUTH_MODE=token here, with the cluster's ~/.ray/auth_token on each of its machines, or start it again "
    "with RAY_AUTH_MODE=disabled where no other user can reach it"
)
# The preface of an HTTP/2 client and an empty SETTINGS frame; a server answers with its own SETTINGS frame (type 4).
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_HEADER_BYTES, _SETTINGS = 9, 4
PLACING_TIMEOUT_S = 10.0
"""Seconds that Ray may take to place a group."""
PLACINGS = 3
"""The number of requests for a placement group, each laid out by the resources that are free then."""
SETTLING_S = 5.0
"""Seconds that Ray may take to show the resources that an earlier run has released."""


def join(address: str) -> None:
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
        if not where.startswith("ray://") and not accepts_token(where):
            raise ConfigInvalid([f"{subject}: this Ray cluster asks for a token, and does not know ours; {_TOKEN}"])
    try:
        ray.init(address=where, logging_level=logging.ERROR, log_to_driver=False)
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
    if address := (named if named != "auto" else None) or machines_cluster():
        return address
    others = running_clusters()
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


def free_machines(address: str) -> Machines:
    """Return each machine's free resources; raises ConfigInvalid like `join`."""
    if ray.is_initialized():
        return _free()
    with without_signal_handlers():
        join(address)
    try:
        return _free()
    finally:
        ray.shutdown()


def _free() -> Machines:
    return Machines(free_resources(), here=False, whole=ray.cluster_resources())  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Reservation:
    """A placement group, None if no process reserves anything, and Ray's actor options by process name."""

    group: PlacementGroup | None
    options: Mapping[str, Mapping[str, Any]]


def reserve(spec: RunSpec) -> Reservation:
    """Reserve the resources of a run's processes; raises ConfigInvalid if the cluster lacks them."""
    requests = requests_of(spec)
    whole: list[dict[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    errors: Problems = [*problems(requests, total(whole), whole)]
    # The only machine is this one, whose CUDA can be checked here.
    if len(whole) == 1:
        errors += without_cuda(spec)
    if errors:
        raise ConfigInvalid(errors)
    # The group holds the resources until the end of the run, so that a lost actor always finds room to restart.
    group, layout = _placed(requests, total(whole), strategy="SPREAD" if spec.spread else "PACK")
    options = {request.name: _actor_options(group, layout, number) for number, request in enumerate(requests)}
    # The inference actor has no state that is not sent again, so Ray itself may restart it.
    if spec.inference is not None:
        options["inference"] |= {"max_restarts": -1, "max_task_retries": -1}
    return Reservation(group, options)


def _placed(
    requests: Sequence[ResourceRequest], whole: Mapping[str, float], strategy: str
) -> tuple[PlacementGroup | None, BundleLayout]:
    """Return a placement group that has its resources, and its layout; raises ConfigInvalid if they are not there."""
    # Ray may still show resources as free that another run has just reserved. Equal shares of it are then too large,
    # and the next attempt asks for smaller ones.
    for _ in range(PLACINGS):
        machines = _free_resources(requests)
        if errors := problems(requests, total(machines), machines, whole):
            raise ConfigInvalid(errors)
        layout = bundles(requests, total(machines), machines)
        if not layout.bundles:
            return None, layout
        group = placement_group(layout.bundles, strategy=strategy)
        if group.wait(PLACING_TIMEOUT_S):
            return group, layout
        remove_placement_group(group)
    raise ConfigInvalid([_unplaceable(requests, layout, machines)])


def _actor_options(group: PlacementGroup | None, layout: BundleLayout, number: int) -> dict[str, Any]:
    """Return what Ray is asked for, for a learner, worker or other process: its CPUs, GPUs, and bundle."""
    taken, bundle = layout.taken[number], layout.bundle_of[number]
    options: dict[str, Any] = {
        "num_cpus": taken.get("CPU", 0.0),
        "num_gpus": taken.get("GPU", 0.0),
        "resources": {name: amount for name, amount in taken.items() if name not in ("CPU", "GPU")},
    }
    if group is not None and bundle is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return options


def _unplaceable(
    requests: Sequence[ResourceRequest], layout: BundleLayout, machines: Sequence[Mapping[str, float]]
) -> str:
    wanted = "; ".join(f"{one.name}: {taken}" for one, taken in zip(requests, layout.taken, strict=True))
    free = "; ".join(str({name: amount for name, amount in one.items() if ":" not in name}) for one in machines)
    return f"the machines have no room for all that is asked ({wanted}); free on each of them: {free}"


def _free_resources(requests: Sequence[ResourceRequest]) -> list[dict[str, float]]:
    # Resources that an earlier run has just released may still count as used.
    deadline = time.monotonic() + SETTLING_S
    while True:
        machines = free_resources()
        if not problems(requests, total(machines), machines) or time.monotonic() > deadline:
            return machines
        time.sleep(0.1)
