"""One placement group for all processes of a run: asked against available first, so that nothing waits in silence."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marlflow.base.errors import ConfigInvalid
from marlflow.base.problems import Problems
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

PLACING_TIMEOUT_S = 30.0
SETTLING_S = 5.0
"""How long Ray may take to show what an earlier run has given back."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """What is reserved: the placement group, and how Ray is to start each process, by what it is."""

    group: PlacementGroup
    options: Mapping[str, Mapping[str, Any]]


def reserve(spec: RunSpec) -> Reserved:
    """Reserves what the processes of a run ask for; raises ConfigInvalid if the cluster cannot give it."""
    asked = requests_of(spec)
    whole: list[dict[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    found: Problems = [*problems(asked, total(whole), whole)]
    if len(whole) == 1:  # then this is the machine
        found += without_cuda(spec)
    machines = [] if found else _settled(asked)
    if found := found or [*problems(asked, total(machines), machines, total(whole))]:
        raise ConfigInvalid(found)
    layout = bundles(asked, total(machines), machines)
    group = placement_group(layout.bundles, strategy="SPREAD" if spec.spread else "PACK")
    if not group.wait(PLACING_TIMEOUT_S):
        remove_placement_group(group)
        raise ConfigInvalid([_unplaceable(asked, layout, machines)])
    options = {one.name: _options(group, layout, number) for number, one in enumerate(asked)}
    if spec.inference is not None:  # it holds nothing that is not sent again, so Ray itself may start it again
        options["inference"] |= {"max_restarts": -1, "max_task_retries": -1}
    return Reserved(group, options)


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
    asked: Sequence[ResourceRequest], layout: BundleLayout, machines: Sequence[Mapping[str, float]]
) -> str:
    wanted = "; ".join(f"{one.name}: {taken}" for one, taken in zip(asked, layout.taken, strict=True))
    free = "; ".join(str({name: amount for name, amount in one.items() if ":" not in name}) for one in machines)
    return f"the machines have no room for all that is asked ({wanted}); free on each of them: {free}"


def _settled(asked: Sequence[ResourceRequest]) -> list[dict[str, float]]:
    """What is free on each machine; if that is too little, it is looked at again for a moment."""
    deadline = time.monotonic() + SETTLING_S
    while True:
        free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
        machines = list(free.values())
        if not problems(asked, total(machines), machines) or time.monotonic() > deadline:
            return machines
        time.sleep(0.1)
