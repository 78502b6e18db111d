"""What the processes of a run ask for, held against what there is, before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from marlflow.base.problems import Problem, ProblemKind
from marlflow.runtime.spec import LearnerPlacement, Resources, RunSpec

_SMALLEST_SHARE = 0.01
_SLACK = 1e-9
"""For sums of fractions."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What each machine has for a run, by Ray's names of resources.

    `here` says whether it is the machine of this process alone, so that its memory can be looked at as well. `whole` is
    what all machines have together, if `amounts` is only what others have left free of it.
    """

    amounts: Sequence[Mapping[str, float]]
    here: bool
    whole: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """One process: what it is for, what it takes, and which other it must be on one machine with."""

    name: str
    resources: Resources
    colocate_with: str | None = None


@dataclass(frozen=True, slots=True)
class BundleLayout:
    """Where the processes of a run go: process i takes `taken[i]` of bundle number `bundle_of[i]`.

    A bundle is what one machine gives, by Ray's names of resources. A process that takes nothing needs none: None.
    """

    bundles: Sequence[Mapping[str, float]]
    taken: Sequence[Mapping[str, float]]
    bundle_of: Sequence[int | None]


def requests_of(spec: RunSpec) -> list[ResourceRequest]:
    """Every process of a run."""
    asked = [ResourceRequest(f"rollout worker {number}", spec.rollout_placement) for number in range(spec.num_workers)]
    for name, one in spec.learners.items():
        if not one.on_workers:
            asked += requests_of_learner(name, one.placement, one.replays if one.replays_apart else ())
    if spec.inference is not None:
        asked.append(ResourceRequest("inference", spec.inference.process))
    return asked


def requests_of_learner(name: str, placement: LearnerPlacement, replays: Sequence[str]) -> list[ResourceRequest]:
    """A learner, those that follow it, and those of its `replays` that live apart, beside the learner."""
    learner = f"learner {name}"
    asked = [ResourceRequest(learner, placement.process)]
    asked += [ResourceRequest(f"{learner} rank {rank}", placement.process) for rank in range(1, placement.num_learners)]
    asked += [
        ResourceRequest(f"replay {name}", Resources(node=placement.node), colocate_with=learner) for name in replays
    ]
    return asked


def problems(
    asked: Sequence[ResourceRequest],
    available: Mapping[str, float],
    machines: Sequence[Mapping[str, float]] = (),
    whole: Mapping[str, float] | None = None,
) -> list[Problem]:
    """A problem for each resource of which more is asked than there is, and one if nothing is left to share.

    `machines` is what each machine of the cluster has; where that is known, so is what no single one of them can take.
    `whole` is what all of them have, if `available` is only what others have left free of it.
    """
    wanted: Counter[str] = Counter()
    by_whom: dict[str, list[str]] = {}
    for one in asked:
        for resource, amount in explicit(one.resources).items():
            wanted[resource] += amount  # type: ignore[assignment]  # fractions are meant
            by_whom.setdefault(resource, []).append(f"{amount:g} for {one.name}")
    found: list[str] = [
        f"the run asks for {amount:g} {resource} ({', '.join(by_whom[resource])}), but "
        + _too_little(resource, amount, available, whole or available)
        for resource, amount in wanted.items()
        if amount > available.get(resource, 0.0) + _SLACK
    ]
    cpus, sharing = available.get("CPU", 0.0), [one.name for one in asked if one.resources.num_cpus is None]
    left = cpus - wanted["CPU"]
    if sharing and -_SLACK <= left < len(sharing) * _SMALLEST_SHARE - _SLACK:
        found.append(
            f"of {cpus:g} CPU {left:g} are left to share among {', '.join(sharing)}; lower the reservations, or wait "
            "until other runs have ended"
        )
    return [Problem(sentence, kind=ProblemKind.LACKS_RESOURCES) for sentence in found or _too_big(asked, machines)]


def _too_little(resource: str, amount: float, available: Mapping[str, float], whole: Mapping[str, float]) -> str:
    """How much of a resource there is, and what to do: to wait, if it would be enough once others have ended."""
    there, all_of_it = available.get(resource, 0.0), whole.get(resource, 0.0)
    if there < all_of_it and amount <= all_of_it + _SLACK:
        return (
            f"of {all_of_it:g} only {there:g} {'is' if there == 1 else 'are'} free, and other runs hold the rest; wait "
            "until they have ended, or lower the reservations"
        )
    return f"there {'is' if there == 1 else 'are'} {there:g}; lower the reservations{_instead(resource, available)}"


def _instead(resource: str, available: Mapping[str, float]) -> str:
    if resource == "CPU":
        return ", or leave num_cpus unset for an equal share"
    if resource == "GPU":
        none = not available.get("GPU")
        return f", {'' if none else 'share GPUs by fractions (placement=one_gpu), '}or use CPUs (placement=cpu)"
    return ""


def _too_big(asked: Sequence[ResourceRequest], machines: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Processes that must be on one machine, and ask for more than any has."""
    for together in _together(asked):
        takes: Counter[str] = Counter()
        for one in together:
            takes.update(explicit(one.resources))  # fractions are meant
        if machines and not any(holds(machine, takes) for machine in machines):
            # The machine that has most of it: no user wants to read the list of a hundred.
            largest = max(machines, key=lambda machine: sum(min(1.0, machine.get(r, 0.0) / takes[r]) for r in takes))
            yield (
                f"{' with '.join(one.name for one in together)} asks for {_shown(takes)} on one machine, and the "
                f"largest of the {len(machines)} can give {_shown({r: largest.get(r, 0.0) for r in takes})}; "
                "lower the reservation"
            )


def without_cuda(spec: RunSpec) -> list[str]:
    """Who would compute on a GPU, one sentence each, where torch sees none in this process; empty where it does."""
    if torch.cuda.is_available():
        return []
    devices = {f"learner {name!r}": one.placement.torch_device for name, one in spec.learners.items()}
    if spec.inference is not None:
        devices["the inference actor"] = spec.inference.torch_device
    return [
        f"{who} is to compute on {device}, and torch sees no GPU here; install a torch with CUDA, or set its device=cpu"
        for who, device in devices.items()
        if torch.device(device).type == "cuda"
    ]


def _shown(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {resource}" for resource, amount in amounts.items())


def total(machines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What all machines have together."""
    found: dict[str, float] = {}
    for machine in machines:
        for resource, amount in machine.items():
            found[resource] = round(found.get(resource, 0.0) + amount, 4)
    return found


def holds(machine: Mapping[str, float], takes: Mapping[str, float]) -> bool:
    """Whether a machine has what is taken of it."""
    return all(amount <= machine.get(resource, 0.0) + _SLACK for resource, amount in takes.items())


def explicit(takes: Resources) -> dict[str, float]:
    """What a reservation names by itself, by Ray's names of resources."""
    named = {"CPU": takes.num_cpus or 0.0, "GPU": takes.num_gpus, **takes.resources}
    if takes.node is not None:
        named[f"node:{takes.node}"] = 0.001
    return {resource: amount for resource, amount in named.items() if amount > 0}


def bundles(
    asked: Sequence[ResourceRequest], available: Mapping[str, float], machines: Sequence[Mapping[str, float]] = ()
) -> BundleLayout:
    """What each process takes: what it names, and of the CPUs that are left, an equal share if it names none.

    The share is at most 1, and so small that all bundles fit the `machines`, where these are known.
    """
    open_ended = sum(one.resources.num_cpus is None for one in asked)
    named = sum(one.resources.num_cpus or 0.0 for one in asked)
    share = (available.get("CPU", 0.0) - named) / max(1, open_ended)
    hundredths = max(1, min(100, int(share * 100 + _SLACK)))
    layout = _layout(asked, hundredths / 100)
    while machines and hundredths > 1 and open_ended and not _packs(layout.bundles, machines):
        hundredths -= 1
        layout = _layout(asked, hundredths / 100)
    return layout


def _layout(asked: Sequence[ResourceRequest], share: float) -> BundleLayout:
    groups = _together(asked)
    taken = {}
    for one in asked:
        cpus = share if one.resources.num_cpus is None else one.resources.num_cpus
        taken[one.name] = explicit(replace(one.resources, num_cpus=cpus))
    made: list[dict[str, float]] = []
    number_of: dict[str, int | None] = {}
    for group in groups:
        total: Counter[str] = Counter()
        for one in group:
            total.update(taken[one.name])  # fractions are meant
            number_of[one.name] = len(made) if taken[one.name] else None
        if total:
            made.append({resource: round(amount, 4) for resource, amount in total.items()})
    return BundleLayout(made, [taken[one.name] for one in asked], [number_of[one.name] for one in asked])


def _together(asked: Sequence[ResourceRequest]) -> list[list[ResourceRequest]]:
    """The processes, each with those that must be beside it."""
    groups = {one.name: [one] for one in asked if one.colocate_with is None}
    for one in asked:
        if one.colocate_with is not None:
            groups[one.colocate_with].append(one)
    return list(groups.values())


def _packs(bundles: Sequence[Mapping[str, float]], machines: Sequence[Mapping[str, float]]) -> bool:
    """Whether all bundles find a place, the largest first, each on the first machine that has room."""
    left = [dict(machine) for machine in machines]
    for bundle in sorted(bundles, key=lambda bundle: (bundle.get("GPU", 0.0), bundle.get("CPU", 0.0)), reverse=True):
        room = next((machine for machine in left if holds(machine, bundle)), None)
        if room is None:
            return False
        for resource, amount in bundle.items():
            room[resource] -= amount
    return True
