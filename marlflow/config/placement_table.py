"""Format the placement of processes for `marlflow plan` and `mf.placement`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from marlflow.config.checked import CheckedExperiment
from marlflow.runtime.resources import Machines, PlacedProcess, place_processes, requests_of
from marlflow.runtime.spec import RunSpec

_NUMBERED = ("rollout worker ", "referee ")
"""Names of processes of which there are several that do the same, before their number."""
_MOST_NAMED = 4


def drawn_placement(checked: CheckedExperiment, machines: Machines | None) -> str:
    """Return one line per process, or per group of equal workers; `machines` None: inline."""
    devices = _devices(checked.spec)
    if machines is None:
        listed = [f"{process} on {device}" for process, device in devices.items() if process != "inference"]
        return "; ".join(["placement: one process, without Ray", *listed])
    seats = place_processes(requests_of(checked.spec), machines.amounts, checked.spec.spread)
    if seats is None:
        return (
            f"placement: no way was found to place all processes on {_described(machines)}; Ray would try for 30 s, "
            "and the run would end before it begins: lower the reservations"
        )
    together: dict[tuple[object, ...], list[PlacedProcess]] = {}
    for seat in seats:
        together.setdefault(_row_key(seat), []).append(seat)
    several = len(machines.amounts) > 1
    where = [_machine_name(number, machine) for number, machine in enumerate(machines.amounts)]
    rows = []
    for group in together.values():
        machine = group[0].machine
        place = [where[machine] if machine is not None else "any machine"] if several else []
        each = " each" if len(group) > 1 else ""
        rows.append([_process_names(group), *place, _resources_and_device(group[0], devices) + each])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n  ".join([f"placement on {_described(machines)}{', as Ray may choose it' if several else ''}", *lines])


def _devices(spec: RunSpec) -> dict[str, str]:
    separate = {name: learner for name, learner in spec.learners.items() if not learner.on_workers}
    devices = {f"learner {name}": learner.placement.torch_device for name, learner in separate.items()}
    return devices | ({} if spec.inference is None else {"inference": spec.inference.torch_device})


def _row_key(seat: PlacedProcess) -> tuple[object, ...]:
    """Return the key by which seats share a line: equal workers on one machine."""
    return seat.machine, *seat.resources.items(), seat.gpus, _kind(seat) or seat.name


def _kind(seat: PlacedProcess) -> str:
    return next((kind for kind in _NUMBERED if seat.name.startswith(kind)), "")


def _process_names(seats: Sequence[PlacedProcess]) -> str:
    if len(seats) == 1:
        return seats[0].name
    kind = _kind(seats[0])
    numbers = [int(seat.name.removeprefix(kind)) for seat in seats]
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        listed = f"{numbers[0]} to {numbers[-1]}"
    elif len(numbers) <= _MOST_NAMED:
        listed = ", ".join(map(str, numbers))
    else:
        listed = f"{', '.join(map(str, numbers[: _MOST_NAMED - 1]))}, ... ({len(numbers)})"
    return f"{kind.strip()}s {listed}"


def _resources_and_device(seat: PlacedProcess, devices: Mapping[str, str]) -> str:
    amounts = ", ".join(_amounts(seat.resources, seat.gpus)) or "nothing reserved"
    device = devices.get(seat.name.rpartition(" rank ")[0] or seat.name)
    return f"{amounts}; computes on {device}" if device else amounts


def _amounts(takes: Mapping[str, float], gpus: Sequence[int] = ()) -> Iterator[str]:
    for resource, amount in takes.items():
        if resource == "GPU" and gpus:
            numbers = ", ".join(map(str, gpus))
            yield f"GPU {numbers}" if amount >= 1 else f"{amount:g} of GPU {numbers}"
        elif not resource.startswith("node:"):
            yield f"{amount:g} {resource}"


def _machine_name(number: int, machine: Mapping[str, float]) -> str:
    addresses = [name.removeprefix("node:") for name in machine if name.startswith("node:") and not name.endswith("__")]
    return addresses[0] if addresses else f"machine {number + 1}"


def _described(machines: Machines) -> str:
    descriptions = [_resources_of(machine) for machine in machines.amounts]
    if machines.here:
        return f"this machine ({descriptions[0]})"
    if len(descriptions) == 1:
        return f"one machine ({descriptions[0]})"
    if len(descriptions) <= _MOST_NAMED:
        listed = (
            f"{_machine_name(number, machine)}: {descriptions[number]}"
            for number, machine in enumerate(machines.amounts)
        )
        return f"{len(descriptions)} machines ({'; '.join(listed)})"
    cpus, gpus = (sum(machine.get(resource, 0.0) for machine in machines.amounts) for resource in ("CPU", "GPU"))
    return f"{len(descriptions)} machines ({cpus:g} CPU and {gpus:g} GPU together)"


def _resources_of(machine: Mapping[str, float]) -> str:
    # Memory and names with a colon are Ray's internal resources.
    custom = [
        name for name in machine if name not in ("CPU", "GPU", "memory", "object_store_memory") and ":" not in name
    ]
    return ", ".join(f"{machine.get(name, 0.0):g} {name}" for name in ("CPU", "GPU", *custom))
