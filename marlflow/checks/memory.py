"""Compare a lower bound of a run's memory with the available memory.

It counts networks without critics and rows without bookkeeping, so a run that fits is never refused.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from marlflow.algorithms.algorithm import TorchAlgorithm
from marlflow.base.spaces import Spaces
from marlflow.config.experiment import Experiment
from marlflow.config.placement import cluster_address
from marlflow.learner.optimizer import Adam
from marlflow.policy.tensors import UNCOUNTABLE, parameters_of
from marlflow.runtime.resources import requests_of
from marlflow.runtime.spec import LearnerPlacement, PolicySpec, RunSpec

_FLOAT32 = 4
# A lower bound: a process of Ray with torch takes about three times as much.
_PROCESS_BYTES = 100 * 2**20

_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Need:
    """A lower bound in bytes, with a description (`what`) of what needs them and the settings that it depends on."""

    nbytes: int
    what: str


def memory_problems(
    experiment: Experiment, spec: RunSpec, players: Mapping[str, Sequence[str]], available_bytes: int | None = None
) -> Iterator[str]:
    """Yield a problem if the run needs more memory than there is; clusters are not checked.

    `players` lists the agents of each policy. `available_bytes` None: the memory left on this machine.
    """
    if cluster_address(experiment.runtime) is not None:
        return
    left = available_memory() if available_bytes is None else available_bytes
    store = experiment.runtime.object_store_bytes
    # Ray refuses to start with a store that is larger than the memory.
    if store is not None and store > left:
        yield (
            f"runtime.object_store_bytes is {store:,} ({_written(store)}), and this machine has {_written(left)} of "
            "memory left; lower it, or leave it null"
        )
    needs = sorted(_needs(experiment, spec, players), key=lambda need: need.nbytes, reverse=True)
    total = sum(need.nbytes for need in needs)
    if total > left:
        # Needs below 1 % of the total are not worth mentioning.
        large = [need for need in needs[:_MOST_NAMED] if need.nbytes > total // 100]
        listed = "; ".join(f"{_written(need.nbytes)} for {need.what}" for need in large)
        yield (
            f"the run needs at least {_written(total)} of memory ({listed}), and this machine has {_written(left)} "
            "left; lower these settings"
        )


def available_memory() -> int:
    """Return the bytes of memory left on this machine, or in this process's container."""
    return min([_left_on_machine(), *_left_in_container()])


def _needs(experiment: Experiment, spec: RunSpec, players: Mapping[str, Sequence[str]]) -> Iterator[Need]:
    for learner in spec.learners.values():
        path = experiment.path_of_learner(learner.name)
        seats = {name: len(slots) or 1 for name, slots in learner.seats.items()}
        for policy in learner.policies:
            policy_path = f"policies.{policy.name}" if policy.name in experiment.policies else "default_policy"
            most = None if experiment.stop.env_steps is None else experiment.stop.env_steps * len(players[policy.name])
            keys = f"{policy_path}.model, {path}.algorithm"
            yield from _network_needs(policy, learner.placement, keys, spec, experiment.runtime.name == "ray")
            yield from _row_needs(policy, path, spec, most, seats[policy.name] / sum(seats.values()))
    if experiment.runtime.name == "ray":
        processes = len(requests_of(spec))
        referees = ", league.matches.workers" if spec.num_referees else ""
        keys_of_processes = f"num_workers, num_learners, replay_shards{referees}"
        yield Need(processes * _PROCESS_BYTES, f"{processes:,} processes ({keys_of_processes})")


def _network_needs(
    policy: PolicySpec, placement: LearnerPlacement, keys: str, spec: RunSpec, separate: bool
) -> Iterator[Need]:
    algorithm = policy.algorithm
    num_parameters = parameters_of(policy.actor)
    if num_parameters is not None:
        # Each learner has weights, gradients and Adam's moments. One copy more is published, and one is on each worker
        # and referee.
        moments = 2 if isinstance(algorithm, TorchAlgorithm) and isinstance(algorithm.optimizer, Adam) else 0
        on_cpu = torch.device(placement.torch_device).type == "cpu"
        learners = placement.num_learners if separate else 1
        sets = ((2 + moments) * learners if on_cpu else 0) + 1 + spec.num_workers + spec.num_referees
        size = "parameters" if num_parameters == UNCOUNTABLE else f"{num_parameters:,} parameters"
        yield Need(num_parameters * sets * _FLOAT32, f"{size} of policy {policy.name!r} ({keys})")


def _row_needs(
    policy: PolicySpec, path: str, spec: RunSpec, most_agent_steps: int | None, share: float
) -> Iterator[Need]:
    """Yield the memory that a policy's rows need, the fraction `share` of its learner's."""
    algorithm, row = policy.algorithm, _row_bytes(policy.spaces)
    held = int(share * getattr(algorithm, "replay_agent_steps", 0)) if algorithm.capabilities.replay else 0
    if most_agent_steps is not None and held * row <= _whole_memory():
        # Pages that were never written take no memory, but a single allocation cannot exceed the machine's memory.
        held = min(held, most_agent_steps)
    yield Need(held * row, f"the rows of a replay ({path}.algorithm.replay_agent_steps)")
    batch = int(share * getattr(algorithm, "batch_agent_steps", 0))
    yield Need(batch * row, f"the rows of a batch ({path}.algorithm.batch_agent_steps)")
    if policy.name not in spec.records:
        fragments = spec.ticks * spec.num_envs
        yield Need(fragments * row, "the rows of fragments (rollouts.fragment_env_steps)")


def _row_bytes(spaces: Spaces) -> int:
    parts: Sequence[tuple[tuple[int, ...], int]] = (
        (spaces.obs_shape, spaces.obs_dtype.itemsize),
        (spaces.action_shape, spaces.action_dtype.itemsize),
    )
    return sum(math.prod(shape) * itemsize for shape, itemsize in parts)


def _whole_memory() -> int:
    # Windows does not say; then nothing is checked.
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_on_machine() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _whole_memory()


def _left_in_container() -> Iterator[int]:
    # Cached files count as available, because the kernel drops them when memory runs out.
    for folder, limit, usage in (
        (_CGROUPS[0], "memory.max", "memory.current"),
        (_CGROUPS[1], "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        # OSError: no such cgroup. ValueError: the limit is "max", that is none.
        with contextlib.suppress(OSError, ValueError):
            most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
            counts = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
            cached = int(counts.get("inactive_file", 0))
            yield max(0, most - used + cached)


def _written(nbytes: int) -> str:
    if nbytes >= UNCOUNTABLE:
        return "4 million TiB"
    return f"{nbytes / 2**40:,.1f} TiB" if nbytes >= 2**40 else f"{nbytes / 2**30:,.2f} GiB"
