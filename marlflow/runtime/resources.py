"""Resource requests of processes: checks against the machines, bundles of the placement group, and `marlflow plan`.

Ray places processes when the run starts; the prediction follows its PACK and SPREAD strategies for placement groups,
largest bundle first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from marlflow.base.errors import Problem, ProblemKind
from marlflow.base.sentences import enumerated, meant
from marlflow.runtime.spec import LearnerPlacement, Resources, RunSpec
from marlflow.sampling.worker import worker_name

_SMALLEST_SHARE = 0.01
# Tolerance for sums of fractions.
_SLACK = 1e-9
# Ray's resource with the address of a machine begins so.
_NODE = "node:"
OF_RAY = ("CPU", "GPU", "memory", "object_store_memory")
"""Resources that Ray itself knows; others have names that a cluster's users chose."""
# An error about hundreds of processes names this many of them.
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Machines:
    """The free resources of each machine, by Ray's names.

    `here`: the only machine is this process's, so its memory can be checked, too. `whole`: the total of all
    machines, if other runs use some.
    """

    amounts: Sequence[Mapping[str, float]]
    here: bool
    whole: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The request of one process, on the machine of the process `colocate_with`, if any."""

    name: str
    resources: Resources
    colocate_with: str | None = None


@dataclass(frozen=True, slots=True)
class BundleLayout:
    """Bundles of a placement group, by Ray's resource names; each has to fit on one machine.

    Process i takes `taken[i]` from bundle `bundle_of[i]`, which is None if it takes nothing.
    """

    bundles: Sequence[Mapping[str, float]]
    taken: Sequence[Mapping[str, float]]
    bundle_of: Sequence[int | None]


def requests_of(spec: RunSpec) -> list[ResourceRequest]:
    """Return the requests of all processes of a run."""
    requests = requests_of_workers(spec.num_workers, spec.num_referees, spec.rollout_placement)
    for name, learner in spec.learners.items():
        if not learner.on_workers:
            requests += requests_of_learner(name, learner.placement, learner.replays if learner.replays_apart else ())
    if spec.inference is not None:
        requests.append(ResourceRequest("inference", spec.inference.process))
    return requests


def requests_of_workers(num_workers: int, num_referees: int, placement: Resources) -> list[ResourceRequest]:
    """Return the requests of rollout workers, and of referees, which have the same resources."""
    numbers = range(num_workers + num_referees)
    return [ResourceRequest(worker_name(number, num_workers), placement) for number in numbers]


def requests_of_learner(name: str, placement: LearnerPlacement, replays: Sequence[str]) -> list[ResourceRequest]:
    """Return the requests of a learner's processes, and of replays with processes of their own."""
    learner = f"learner {name}"
    requests = [ResourceRequest(learner, placement.process)]
    requests += [
        ResourceRequest(f"{learner} rank {rank}", placement.process) for rank in range(1, placement.num_learners)
    ]
    # On the learner's machine, because every draw goes to the learner.
    requests += [
        ResourceRequest(f"replay {replay}", Resources(node=placement.node), colocate_with=learner) for replay in replays
    ]
    return requests


def problems(
    requests: Sequence[ResourceRequest],
    available: Mapping[str, float],
    machines: Sequence[Mapping[str, float]] = (),
    whole: Mapping[str, float] | None = None,
) -> list[Problem]:
    """Return a problem for each resource that is short, including shares of CPUs.

    If there are none, return one for each group of colocated processes that fits none of `machines`. `whole` has the
    totals, if `available` has only the resources that other runs leave free.
    """
    requested: Counter[str] = Counter()
    users: dict[str, list[str]] = {}
    for request in requests:
        for resource, amount in explicit(request.resources).items():
            requested[resource] += amount  # type: ignore[assignment]  # fractions are meant
            users.setdefault(resource, []).append(f"{amount:g} for {request.name}")
    sentences: list[str] = [
        f"the run asks for {amount:g} {resource} ({enumerated(users[resource], _MOST_NAMED)}), but "
        + _too_little(resource, amount, available, whole or available)
        for resource, amount in requested.items()
        if amount > available.get(resource, 0.0) + _SLACK and not resource.startswith(_NODE)
    ]
    sentences += [*_no_machine(requests, whole or available)]
    cpus = available.get("CPU", 0.0)
    sharing = [request.name for request in requests if request.resources.num_cpus is None]
    left = cpus - requested["CPU"]
    # A negative rest is reported above, as a shortage of CPUs.
    if sharing and -_SLACK <= left < len(sharing) * _SMALLEST_SHARE - _SLACK:
        existing = (whole or available).get("CPU", 0.0)
        rest = f"of {existing:g} CPU other runs leave {cpus:g}, of which" if cpus < existing else f"of {cpus:g} CPU"
        remedy = (
            "; wait until they have ended, or lower the reservations" if cpus < existing else "; lower the reservations"
        )
        sentences.append(f"{rest} {left:g} are left to share among {enumerated(sharing, _MOST_NAMED)}{remedy}")
    # If a total is short, smaller processes would not help.
    sentences = sentences or list(_too_big(requests, machines))
    return [Problem(sentence, kind=ProblemKind.LACKS_RESOURCES) for sentence in sentences]


def _too_little(resource: str, amount: float, available: Mapping[str, float], whole: Mapping[str, float]) -> str:
    free, existing = available.get(resource, 0.0), whole.get(resource, 0.0)
    # Waiting helps only if the run would fit on the machines alone.
    if free < existing and amount <= existing + _SLACK:
        return (
            f"of {existing:g} only {free:g} {'is' if free == 1 else 'are'} free, and other runs hold the rest; wait "
            "until they have ended, or lower the reservations"
        )
    if not existing and resource not in ("CPU", "GPU"):
        others = [name for name in sorted(whole) if name not in OF_RAY and ":" not in name]
        return f"there are 0: no machine has a resource of this name{meant(resource, others, 'there are')}"
    return f"there {'is' if free == 1 else 'are'} {free:g}; lower the reservations{_alternative(resource, available)}"


def _no_machine(requests: Sequence[ResourceRequest], whole: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each address of a machine that is not in the cluster."""
    addresses = sorted(name.removeprefix(_NODE) for name in whole if name.startswith(_NODE) and not name.endswith("__"))
    for node in dict.fromkeys(request.resources.node for request in requests):
        if node is not None and node not in addresses:
            pinned = enumerated([one.name for one in requests if one.resources.node == node], _MOST_NAMED)
            there = f"; there are {enumerated(addresses, _MOST_NAMED)}" if addresses else ""
            yield f"placement.node={node} of {pinned}: no machine of the cluster has this address{there}"


def _alternative(resource: str, available: Mapping[str, float]) -> str:
    if resource == "CPU":
        return ", or leave num_cpus unset for an equal share"
    if resource == "GPU":
        none = not available.get("GPU")
        return f", {'' if none else 'share GPUs by fractions (placement=one_gpu), '}or use CPUs (placement=cpu)"
    return ""


def _too_big(requests: Sequence[ResourceRequest], machines: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for group in _colocated(requests):
        amounts: Counter[str] = Counter()
        for request in group:
            amounts.update(explicit(request.resources))  # fractions are meant
        if machines and not any(holds(machine, amounts) for machine in machines):
            # Report the machine that covers most of the request, not all of a hundred machines.
            largest = max(
                machines, key=lambda machine: sum(min(1.0, machine.get(r, 0.0) / amounts[r]) for r in amounts)
            )
            yield (
                f"{' with '.join(request.name for request in group)} asks for {_listed(amounts)} on one machine, and "
                f"the largest of the {len(machines)} can give {_listed({r: largest.get(r, 0.0) for r in amounts})}; "
                "lower the reservation"
            )


def without_cuda(spec: RunSpec) -> list[str]:
    """Return a sentence for each process that needs a GPU, if torch sees none here."""
    if torch.cuda.is_available():
        return []
    devices = {f"learner {name!r}": learner.placement.torch_device for name, learner in spec.learners.items()}
    if spec.inference is not None:
        devices["the inference actor"] = spec.inference.torch_device
    return [
        f"{process} is to compute on {device}, and torch sees no GPU here; install a torch with CUDA, or set its "
        "device=cpu"
        for process, device in devices.items()
        if torch.device(device).type == "cuda"
    ]


def _listed(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {resource}" for resource, amount in amounts.items())


def total(machines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of all machines' amounts."""
    sums: dict[str, float] = {}
    for machine in machines:
        for resource, amount in machine.items():
            # Ray counts resources in units of 1e-4.
            sums[resource] = round(sums.get(resource, 0.0) + amount, 4)
    return sums


def holds(machine: Mapping[str, float], amounts: Mapping[str, float]) -> bool:
    """Return whether a machine has these amounts."""
    return all(amount <= machine.get(resource, 0.0) + _SLACK for resource, amount in amounts.items())


def explicit(request: Resources) -> dict[str, float]:
    """Return the stated amounts by Ray's names; equal shares of CPUs are not stated."""
    amounts = {"CPU": request.num_cpus or 0.0, "GPU": request.num_gpus, **request.resources}
    if request.node is not None:
        # Ray gives each machine 1.0 of a resource with its address; a small amount of it pins the process there.
        amounts[f"{_NODE}{request.node}"] = 0.001
    return {resource: amount for resource, amount in amounts.items() if amount > 0}


def bundles(
    requests: Sequence[ResourceRequest], available: Mapping[str, float], machines: Sequence[Mapping[str, float]] = ()
) -> BundleLayout:
    """Lay out bundles, one for each group of colocated processes.

    Processes without `num_cpus` share the remaining CPUs equally: at most 1, and so that bundles fit on `machines`.
    """
    sharing = sum(request.resources.num_cpus is None for request in requests)
    stated = sum(request.resources.num_cpus or 0.0 for request in requests)
    share = (available.get("CPU", 0.0) - stated) / max(1, sharing)
    # Whole hundredths: exact in Ray's units of 1e-4, and few to try.
    hundredths = max(1, min(100, int(share * 100 + _SLACK)))
    layout = _layout(requests, hundredths / 100)
    while machines and hundredths > 1 and sharing and not _fit(layout.bundles, machines):
        hundredths -= 1
        layout = _layout(requests, hundredths / 100)
    return layout


def _layout(requests: Sequence[ResourceRequest], share: float) -> BundleLayout:
    taken = {}
    for request in requests:
        cpus = share if request.resources.num_cpus is None else request.resources.num_cpus
        taken[request.name] = explicit(replace(request.resources, num_cpus=cpus))
    layout: list[dict[str, float]] = []
    bundle_of: dict[str, int | None] = {}
    for group in _colocated(requests):
        amounts: Counter[str] = Counter()
        for request in group:
            amounts.update(taken[request.name])  # fractions are meant
            bundle_of[request.name] = len(layout) if taken[request.name] else None
        # Ray refuses empty bundles.
        if amounts:
            layout.append({resource: round(amount, 4) for resource, amount in amounts.items()})
    names = [request.name for request in requests]
    return BundleLayout(layout, [taken[name] for name in names], [bundle_of[name] for name in names])


def _colocated(requests: Sequence[ResourceRequest]) -> list[list[ResourceRequest]]:
    """Group processes by machine."""
    groups = {request.name: [request] for request in requests if request.colocate_with is None}
    for request in requests:
        if request.colocate_with is not None:
            groups[request.colocate_with].append(request)
    return list(groups.values())


def _fit(bundles: Sequence[Mapping[str, float]], machines: Sequence[Mapping[str, float]]) -> bool:
    # The largest first, each on the first machine with room, as Ray does.
    left = [dict(machine) for machine in machines]
    for bundle in sorted(bundles, key=lambda bundle: (bundle.get("GPU", 0.0), bundle.get("CPU", 0.0)), reverse=True):
        room = next((machine for machine in left if holds(machine, bundle)), None)
        if room is None:
            return False
        for resource, amount in bundle.items():
            room[resource] -= amount
    return True


def local_resources() -> dict[str, float]:
    """Return the CPUs and GPUs of this machine."""
    # Only Linux says which CPUs this process may use; others say how many there are.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"CPU": float(cpus), "GPU": float(torch.cuda.device_count())}


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
