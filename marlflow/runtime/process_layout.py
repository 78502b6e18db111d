"""Predicts the machine and GPUs of each process, for `marlflow plan`.

Ray chooses when the run starts; this follows its PACK and SPREAD strategies for placement groups, largest bundle first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marlflow.runtime.resources import ResourceRequest, bundles, holds, total

_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class PlacedProcess:
    """A process, its resource amounts, the index of its machine, and the indices of its GPUs there.

    `machine` is None for a process without resources, which may run anywhere.
    """

    name: str
    resources: Mapping[str, float]
    machine: int | None
    gpus: tuple[int, ...] = ()


def place_processes(
    requests: Sequence[ResourceRequest], machines: Sequence[Mapping[str, float]], spread: bool
) -> list[PlacedProcess] | None:
    """Place processes on machines, in order of `requests`; None if some do not fit."""
    layout = bundles(requests, total(machines), machines)
    machine_of = _machines_of(layout.bundles, machines, spread)
    if machine_of is None:
        return None
    free_gpus = [[1.0] * int(machine.get("GPU", 0.0)) for machine in machines]
    processes = []
    for request, amounts, bundle in zip(requests, layout.taken, layout.bundle_of, strict=True):
        machine = None if bundle is None else machine_of[bundle]
        gpus = () if machine is None else _take_gpus(amounts.get("GPU", 0.0), free_gpus[machine])
        if gpus is None:
            return None
        processes.append(PlacedProcess(request.name, amounts, machine, gpus))
    return processes


def _machines_of(
    needed: Sequence[Mapping[str, float]], machines: Sequence[Mapping[str, float]], spread: bool
) -> list[int] | None:
    free = [dict(machine) for machine in machines]
    bundles_on = [0] * len(machines)
    machine_of: dict[int, int] = {}
    order = sorted(
        range(len(needed)), key=lambda i: (needed[i].get("GPU", 0.0), needed[i].get("CPU", 0.0)), reverse=True
    )
    for bundle in order:
        fitting = [number for number, machine in enumerate(free) if holds(machine, needed[bundle])]
        if not fitting:
            return None
        # SPREAD prefers the machine with the fewest bundles, PACK any machine that already has one.
        number = min(fitting, key=lambda number: (bundles_on[number] if spread else not bundles_on[number], number))
        bundles_on[number] += 1
        for resource, amount in needed[bundle].items():
            free[number][resource] -= amount
        machine_of[bundle] = number
    return [machine_of[bundle] for bundle in range(len(needed))]


def _take_gpus(amount: float, free: list[float]) -> tuple[int, ...] | None:
    """Take GPUs, or a share of one, from `free`; None if there are too few."""
    count, each = (int(amount), 1.0) if amount >= 1 else (1, amount)
    if amount <= 0:
        return ()
    gpus = [number for number, left in enumerate(free) if left >= each - _SLACK][:count]
    if len(gpus) < count:
        return None
    for number in gpus:
        free[number] -= each
    return tuple(gpus)
