"""Resolve the resources of each process, and check them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

import torch

from marlflow.algorithms.algorithm import Algorithm
from marlflow.base.errors import ConfigInvalid
from marlflow.config.experiment import Experiment, LearnerConfig, PlacementOverrides, RunPlacement
from marlflow.runtime.resources import Machines
from marlflow.runtime.spec import LearnerPlacement, Resources

# Ray counts GPUs in units of 1/10,000.
_SMALLEST_GPU = 10_000
_MOST_MACHINES = 10_000
# As of CustomResources.
_LARGEST = 1e15
_OF_RAY = ("CPU", "GPU", "memory", "object_store_memory")
_OF_RAY_LIKE = {name.upper(): name for name in _OF_RAY}


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
        yield f"{path}.device must be one of torch's, such as cpu, cuda or cuda:1, not {device!r}"
        return
    if kind == "cuda" and num_gpus <= 0:
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
            if name not in _OF_RAY and (meant := _OF_RAY_LIKE.get(name.upper().removesuffix("S"))):
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
