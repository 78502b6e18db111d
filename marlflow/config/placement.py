"""Resolve the resources of each process and the cluster that a run joins, check them, and draw where processes run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

import torch

from marlflow.algorithms.algorithm import Algorithm
from marlflow.base.errors import ConfigInvalid
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Experiment, LearnerConfig, PlacementOverrides, RunPlacement, RuntimeConfig
from marlflow.runtime.resources import OF_RAY, Machines, PlacedProcess, place_processes, requests_of
from marlflow.runtime.spec import LearnerPlacement, Resources, RunSpec

# Ray counts GPUs in units of 1/10,000.
_SMALLEST_GPU = 10_000
_MOST_MACHINES = 10_000
# As of CustomResources.
_LARGEST = 1e15
_OF_RAY_LIKE = {name.upper(): name for name in OF_RAY}


def placements(run: RunPlacement, learners: Mapping[str, LearnerConfig]) -> dict[str, LearnerPlacement]:
    """Return each learner's placement: its own settings, else the run's."""
    placed = {name: _placed(run.learners, learner) for name, learner in learners.items()}
    if run.shared_gpus is None:
        return placed
    sharing = [name for name, learner in learners.items() if _shares(learner)]
    share = shared_equally(run.shared_gpus, sum(placed[name].num_learners for name in sharing))
    return placed | {name: replace(placed[name], num_gpus=share) for name in sharing}


def _placed(default: LearnerPlacement, learner: LearnerConfig) -> LearnerPlacement:
    overrides = {field.name: getattr(learner.placement, field.name) for field in fields(learner.placement)}
    # It learns in the processes of the rollout workers, which have resources of their own.
    if learner.algorithm.capabilities.learns_on == "workers":
        return LearnerPlacement(precision=overrides["precision"] or default.precision)
    return replace(default, **{name: value for name, value in overrides.items() if value is not None})


def _shares(learner: LearnerConfig) -> bool:
    return learner.algorithm.capabilities.learns_on == "learner" and learner.placement.num_gpus is None


def shared_equally(gpus: float, processes: int) -> float:
    """Return the share of `gpus` of each of `processes`.

    With several GPUs but not one each, each GPU has the least number of processes that suffices.
    """
    if processes == 0:
        return 0.0
    if gpus >= processes:
        return float(gpus // processes)
    # A fraction must not span two GPUs, so several GPUs are divided into equal whole numbers of processes.
    share = gpus / processes if gpus <= 1 else 1 / math.ceil(processes / gpus)
    # Rounded down, so that the shares together fit; 1e-6 keeps an exact share from being rounded below itself.
    return math.floor(share * _SMALLEST_GPU + 1e-6) / _SMALLEST_GPU


def placement_problems(experiment: Experiment) -> Iterator[str]:
    """Yield a problem for each invalid amount or device of a placement."""
    run = experiment.placement
    yield from reservation_problems("rollouts.placement", experiment.rollouts.placement)
    yield from reservation_problems("placement.learners", run.learners)
    if run.inference is not None:
        yield from reservation_problems("placement.inference", run.inference)
        yield from _device_problems("placement.inference", run.inference.device, run.inference.num_gpus)
    yield from _share_problems("placement.shared_gpus", run.shared_gpus, "null")
    if run.shared_gpus is not None and run.learners.num_gpus > 0:
        yield (
            f"placement.shared_gpus is {run.shared_gpus:g} and placement.learners.num_gpus {run.learners.num_gpus:g}: "
            "learners share GPUs, or each takes its own; set one of the two to null or 0"
        )
    for path, algorithm, placement in experiment.all_learners():
        yield from reservation_problems(f"{path}.placement", placement)
        if algorithm.capabilities.learns_on == "workers":
            yield from _replica_problems(f"{path}.placement", algorithm, placement)


def device_problems(experiment: Experiment, learners: Mapping[str, LearnerConfig]) -> Iterator[str]:
    """Yield a problem for each learner on cuda without a GPU, or on an unknown device."""
    for name, placement in placements(experiment.placement, learners).items():
        section = "learners" if name in experiment.learners else "policies"
        yield from _device_problems(f"{section}.{name}.placement", placement.device, placement.num_gpus)


def _replica_problems(path: str, algorithm: Algorithm, placement: PlacementOverrides) -> Iterator[str]:
    """Yield settings of processes that a learner on the rollout workers does not have."""
    allowed = {"num_learners": 1, "num_gpus": 0, "device": "cpu", "precision": placement.precision}
    for field in fields(placement):
        value = getattr(placement, field.name)
        if value is not None and value != allowed.get(field.name):
            yield (
                f"{path}.{field.name} must be null, not {value!r}: {algorithm.name} learns on the rollout "
                "workers, with all stages beside each; set rollouts.num_workers and rollouts.placement"
            )


def reservation_problems(path: str, takes: Resources | PlacementOverrides) -> Iterator[str]:
    """Yield why Ray cannot give a process its GPUs; `path` is that of the reservation."""
    yield from _share_problems(f"{path}.num_gpus", takes.num_gpus, "0")


def _share_problems(path: str, gpus: float | None, none: str) -> Iterator[str]:
    """Yield why Ray cannot give a process or learners this number of GPUs; `none` is how no GPU is written."""
    # Numbers that are not finite or below 0 are out of range anyway.
    if gpus is None or not math.isfinite(gpus):
        return
    if gpus > 1 and gpus % 1:
        yield f"{path} must be a fraction below 1, a whole number, or {none}, not {gpus:g}"
    elif 0 < gpus < 1 / _SMALLEST_GPU:
        yield f"{path} must be {none} or at least {1 / _SMALLEST_GPU:g}, Ray's smallest share of a GPU, not {gpus:g}"


def _device_problems(path: str, device: str | None, num_gpus: float) -> Iterator[str]:
    if device is None:
        return
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        yield f"{path}.device must be cpu or cuda, or one such as cuda:1, not {device!r}"
    elif kind == "cuda" and num_gpus <= 0:
        yield (
            f"{path}.device is {device} and num_gpus 0: a process sees only the GPUs that it has a share of; "
            "raise num_gpus"
        )


def described_machines(entries: object, setting: str) -> Machines:
    """Parse the machines of a cluster, `[{CPU: 16, GPU: 2, count: 4}, ...]`; `count` are alike.

    Resource names are Ray's; `node` is an address. `setting` names the option in errors. Raises ConfigInvalid with all
    problems.
    """
    example = "such as [{CPU: 16, GPU: 2, count: 4}, {CPU: 64}]"
    listed = entries if isinstance(entries, Sequence) and not isinstance(entries, str) else [entries]
    problems: list[str] = []
    machines: list[dict[str, float]] = []
    for number, entry in enumerate(listed):
        if not isinstance(entry, Mapping) or not entry:
            problems.append(f"{setting}[{number}] must be what a machine has, {example}, not {entry!r}")
            continue
        count = entry.get("count", 1)
        if type(count) is not int or not 1 <= count <= _MOST_MACHINES:
            problems.append(
                f"{setting}[{number}].count must be a whole number from 1 to {_MOST_MACHINES:,}, not {count!r}"
            )
            continue
        amounts = {str(name): value for name, value in entry.items() if name not in ("count", "node")}
        for name, value in amounts.items():
            if name not in OF_RAY and (meant := _OF_RAY_LIKE.get(name.upper().removesuffix("S"))):
                problems.append(f"{setting}[{number}] has no {name!r}; did you mean {meant!r}?")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
                expected = f"a number, at least 0 and at most {_LARGEST:g}"
                problems.append(f"{setting}[{number}].{name} must be {expected}, not {value!r:.60}")
        if "node" in entry:
            # Ray gives each machine a resource of this name, by which a process can require it.
            amounts[f"node:{entry['node']}"] = 1.0
        machines += [amounts] * count
    if not listed:
        problems.append(f"{setting} has no machine; write what each has, {example}")
    if problems:
        raise ConfigInvalid(problems)
    return Machines(machines, here=False)


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
    custom = [name for name in machine if name not in OF_RAY and ":" not in name]
    return ", ".join(f"{machine.get(name, 0.0):g} {name}" for name in ("CPU", "GPU", *custom))


_NONE = "local"


def cluster_address(runtime: RuntimeConfig) -> str | None:
    """Return the address of the cluster that the run joins, or None if Ray is started for it."""
    address = runtime.address or os.environ.get("RAY_ADDRESS") or _NONE
    return None if runtime.name == "inline" or address == _NONE else address


def cluster_setting(runtime: RuntimeConfig) -> str:
    """Return what chose the cluster, for messages: `RAY_ADDRESS=10.0.0.1:6379`."""
    return f"{'runtime.address' if runtime.address else 'RAY_ADDRESS'}={cluster_address(runtime)}"
