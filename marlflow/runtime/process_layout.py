"""Which machine and which GPUs each process of a run could get, to be shown before anything starts.

Ray decides it when the run starts. This fills the machines by Ray's strategies, PACK or SPREAD, largest bundle first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marlflow.runtime.resources import ResourceRequest, bundles, holds, total

_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class PlacedProcess:
    """One process: the amounts that it takes, and the numbers of its machine and of its GPUs there.

    `machine` is None for a process that takes nothing, and so may be on any.
    """

    name: str
    resources: Mapping[str, float]
    machine: int | None
    gpus: tuple[int, ...] = ()


def place_processes(
    asked: Sequence[ResourceRequest], machines: Sequence[Mapping[str, float]], spread: bool
) -> list[PlacedProcess] | None:
    """A place for each process, in their order; None if this way of filling the machines finds none for some."""
    layout = bundles(asked, total(machines), machines)
    machine_of = _machines_of(layout.bundles, machines, spread)
    if machine_of is None:
        return None
    free_gpus = [[1.0] * int(machine.get("GPU", 0.0)) for machine in machines]
    seats = []
    for one, takes, bundle in zip(asked, layout.taken, layout.bundle_of, strict=True):
        machine = None if bundle is None else machine_of[bundle]
        gpus = () if machine is None else _gpus(takes.get("GPU", 0.0), free_gpus[machine])
        if gpus is None:
            return None
        seats.append(PlacedProcess(one.name, takes, machine, gpus))
    return seats


def _machines_of(
    needed: Sequence[Mapping[str, float]], machines: Sequence[Mapping[str, float]], spread: bool
) -> list[int] | None:
    left, held = [dict(machine) for machine in machines], [0] * len(machines)
    found: dict[int, int] = {}
    order = sorted(
        range(len(needed)), key=lambda i: (needed[i].get("GPU", 0.0), needed[i].get("CPU", 0.0)), reverse=True
    )
    for bundle in order:
        fitting = [number for number, machine in enumerate(left) if holds(machine, needed[bundle])]
        if not fitting:
            return None
        number = min(fitting, key=lambda number: (held[number] if spread else not held[number], number))
        held[number] += 1
        for resource, amount in needed[bundle].items():
            left[number][resource] -= amount
        found[bundle] = number
    return [found[bundle] for bundle in range(len(needed))]


def _gpus(amount: float, free: list[float]) -> tuple[int, ...] | None:
    """Takes whole GPUs, or a fraction of one, out of `free`; None if there are none."""
    count, each = (int(amount), 1.0) if amount >= 1 else (1, amount)
    if amount <= 0:
        return ()
    found = [number for number, left in enumerate(free) if left >= each - _SLACK][:count]
    if len(found) < count:
        return None
    for number in found:
        free[number] -= each
    return tuple(found)
