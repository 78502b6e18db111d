"""Who gets which CPU, GPU and machine, as `marlflow plan` and `mf.placement` say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from marlflow.config.validation import CheckedExperiment
from marlflow.runtime.process_layout import PlacedProcess, place_processes
from marlflow.runtime.resources import Machines, requests_of
from marlflow.runtime.spec import RunSpec

_WORKER = "rollout worker "
_MOST_NAMED = 4


def drawn_placement(made: CheckedExperiment, machines: Machines | None) -> str:
    """One line for each process, workers that take the same in one; `machines` is None where there is no cluster."""
    devices = _devices(made.spec)
    if machines is None:
        named = [f"{what} on {device}" for what, device in devices.items() if what != "inference"]
        return "; ".join(["placement: one process, without Ray", *named])
    seats = place_processes(requests_of(made.spec), machines.amounts, made.spec.spread)
    if seats is None:
        return (
            f"placement: no way was found to place all processes on {_described(machines)}; Ray would try for 30 s, "
            "and the run would end before it begins: lower the reservations"
        )
    together: dict[tuple[object, ...], list[PlacedProcess]] = {}
    for seat in seats:
        together.setdefault(_shown_together(seat), []).append(seat)
    several = len(machines.amounts) > 1
    where = [_name(number, machine) for number, machine in enumerate(machines.amounts)]
    rows = []
    for group in together.values():
        machine = group[0].machine
        place = [where[machine] if machine is not None else "any machine"] if several else []
        rows.append([_who(group), *place, _what(group[0], devices) + (" each" if len(group) > 1 else "")])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n  ".join([f"placement on {_described(machines)}{', as Ray may choose it' if several else ''}", *lines])


def _devices(spec: RunSpec) -> dict[str, str]:
    """The torch device of each learner and of the inference actor, by process."""
    own = {name: one for name, one in spec.learners.items() if not one.on_workers}
    devices = {f"learner {name}": one.placement.torch_device for name, one in own.items()}
    return devices | ({} if spec.inference is None else {"inference": spec.inference.torch_device})


def _shown_together(seat: PlacedProcess) -> tuple[object, ...]:
    """Rollout workers on one machine that take the same are one line; any other process is a line of its own."""
    return seat.machine, *seat.resources.items(), seat.gpus, _WORKER if seat.name.startswith(_WORKER) else seat.name


def _who(seats: Sequence[PlacedProcess]) -> str:
    if len(seats) == 1:
        return seats[0].name
    numbers = [int(seat.name.removeprefix(_WORKER)) for seat in seats]
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        listed = f"{numbers[0]} to {numbers[-1]}"
    elif len(numbers) <= _MOST_NAMED:
        listed = ", ".join(map(str, numbers))
    else:
        listed = f"{', '.join(map(str, numbers[: _MOST_NAMED - 1]))}, ... ({len(numbers)})"
    return f"{_WORKER.strip()}s {listed}"


def _what(seat: PlacedProcess, devices: Mapping[str, str]) -> str:
    """What a process takes, and what it computes on."""
    told = ", ".join(_amounts(seat.resources, seat.gpus)) or "nothing reserved"
    device = devices.get(seat.name.rpartition(" rank ")[0] or seat.name)
    return f"{told}; computes on {device}" if device else told


def _amounts(takes: Mapping[str, float], gpus: Sequence[int] = ()) -> Iterator[str]:
    for resource, amount in takes.items():
        if resource == "GPU" and gpus:
            numbers = ", ".join(map(str, gpus))
            yield f"GPU {numbers}" if amount >= 1 else f"{amount:g} of GPU {numbers}"
        elif not resource.startswith("node:"):
            yield f"{amount:g} {resource}"


def _name(number: int, machine: Mapping[str, float]) -> str:
    """The address of a machine where it is known, else its number."""
    addresses = [name.removeprefix("node:") for name in machine if name.startswith("node:") and not name.endswith("__")]
    return addresses[0] if addresses else f"machine {number + 1}"


def _described(machines: Machines) -> str:
    """What there is, machine by machine; of many the number and what they have together."""
    told = [_has(machine) for machine in machines.amounts]
    if machines.here:
        return f"this machine ({told[0]})"
    if len(told) == 1:
        return f"one machine ({told[0]})"
    if len(told) <= _MOST_NAMED:
        named = (f"{_name(number, machine)}: {told[number]}" for number, machine in enumerate(machines.amounts))
        return f"{len(told)} machines ({'; '.join(named)})"
    cpus, gpus = (sum(machine.get(resource, 0.0) for machine in machines.amounts) for resource in ("CPU", "GPU"))
    return f"{len(told)} machines ({cpus:g} CPU and {gpus:g} GPU together)"


def _has(machine: Mapping[str, float]) -> str:
    """CPUs, GPUs, and resources of the user's own; Ray's others are nobody's to take."""
    own = [name for name in machine if name not in ("CPU", "GPU", "memory", "object_store_memory") and ":" not in name]
    return ", ".join(f"{machine.get(name, 0.0):g} {name}" for name in ("CPU", "GPU", *own))
