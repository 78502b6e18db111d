"""Reserve one placement group for all processes of a run, after checking that the cluster has room."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marlflow.base.errors import ConfigInvalid, Problems
from marlflow.runtime.resources import (
    BundleLayout,
    ResourceRequest,
    bundles,
    problems,
    requests_of,
    total,
    without_cuda,
)
from marlflow.runtime.spec import RunSpec

PLACING_TIMEOUT_S = 10.0
"""Seconds that Ray may take to place a group."""
PLACINGS = 3
"""Groups that are asked for, each laid out by what is free then."""
SETTLING_S = 5.0
"""Seconds that Ray may take to show the resources that an earlier run has released."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A placement group, and Ray's actor options by process name."""

    group: PlacementGroup
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
    options = {request.name: _options(group, layout, number) for number, request in enumerate(requests)}
    # The inference actor has no state that is not sent again, so Ray itself may restart it.
    if spec.inference is not None:
        options["inference"] |= {"max_restarts": -1, "max_task_retries": -1}
    return Reservation(group, options)


def _placed(
    requests: Sequence[ResourceRequest], whole: Mapping[str, float], strategy: str
) -> tuple[PlacementGroup, BundleLayout]:
    """Return a placement group that has its resources, and its layout; raises ConfigInvalid if they are not there."""
    # Ray may still show as free what another run has just reserved. Equal shares of it are then too large, and the next
    # attempt asks for smaller ones.
    for _ in range(PLACINGS):
        machines = _free_resources(requests)
        if errors := problems(requests, total(machines), machines, whole):
            raise ConfigInvalid(errors)
        layout = bundles(requests, total(machines), machines)
        group = placement_group(layout.bundles, strategy=strategy)
        if group.wait(PLACING_TIMEOUT_S):
            return group, layout
        remove_placement_group(group)
    raise ConfigInvalid([_unplaceable(requests, layout, machines)])


def _options(group: PlacementGroup, layout: BundleLayout, number: int) -> dict[str, Any]:
    taken, bundle = layout.taken[number], layout.bundle_of[number]
    options: dict[str, Any] = {
        "num_cpus": taken.get("CPU", 0.0),
        "num_gpus": taken.get("GPU", 0.0),
        "resources": {name: amount for name, amount in taken.items() if name not in ("CPU", "GPU")},
    }
    if bundle is not None:
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
        free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
        machines = list(free.values())
        if not problems(requests, total(machines), machines) or time.monotonic() > deadline:
            return machines
        time.sleep(0.1)
