"""Reserves for several runs on a cluster of two machines with two fake GPUs each, and prints where each process is.

A process of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private.utils import write_ray_address
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table, remove_placement_group

from marlflow.base.errors import ConfigInvalid
from marlflow.config.experiment import PlacementOverrides, Policy, Rollouts, RunPlacement
from marlflow.runtime.ray.cluster import free_machines, join, reserve
from marlflow.runtime.resources import place_processes, problems, requests_of, total
from marlflow.runtime.spec import LearnerPlacement, Resources, RunSpec
from tests.forked_workers import closed_template, forked_workers
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_spec

ON_CPU = LearnerPlacement(device="cpu")
OWN_REPLAY = {
    "hunters": Policy(SMALL_PPO, SMALL),
    "prey": Policy(SMALL_DQN, SMALL, PlacementOverrides(num_cpus=1, replay="own")),
}
ONE_WORKER = Rollouts(num_workers=1, fragment_env_steps=40)
FOUR_WORKERS = Rollouts(num_workers=4, fragment_env_steps=40, placement=Resources(num_cpus=0.5))
TOO_MUCH = {"hunters": Policy(SMALL_PPO, SMALL, PlacementOverrides(num_cpus=6)), "prey": Policy(SMALL_DQN, SMALL)}


def _placed(learners: LearnerPlacement, shared_gpus: float | None = None) -> RunSpec:
    return small_spec(placement=RunPlacement(learners, shared_gpus), rollouts=ONE_WORKER)


RUNS: dict[str, RunSpec] = {
    "one_gpu": _placed(ON_CPU, shared_gpus=1.0),
    "gpu_per_policy": _placed(LearnerPlacement(num_gpus=1, device="cpu")),
    "data_parallel": _placed(LearnerPlacement(num_learners=2, num_gpus=1, device="cpu")),
    "cluster": small_spec(policies=OWN_REPLAY, rollouts=FOUR_WORKERS, placement=RunPlacement(spread=True)),
    "packed": small_spec(rollouts=ONE_WORKER),
    "beyond_one_machine": small_spec(policies=TOO_MUCH),
    "beyond_the_cluster": _placed(LearnerPlacement(num_gpus=3, device="cpu")),
}


class Probe:
    """Stands where a process of a run would."""

    def seen(self) -> dict[str, Any]:
        """The machine it is on, and the GPUs that it sees."""
        return {
            "machine": ray.get_runtime_context().get_node_id(),
            "gpus": ray.get_gpu_ids(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        }


def places(spec: RunSpec) -> Any:
    """Where each process of a run goes; or the problems, and whether Ray was asked for a reservation first."""
    try:
        reserved = reserve(spec)
    except ConfigInvalid as error:
        pending = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        return {"problems": error.problems, "waited": bool(pending)}
    probes = {what: ray.remote(Probe).options(**options).remote() for what, options in reserved.options.items()}
    seen = dict(zip(probes, ray.get([probe.seen.remote() for probe in probes.values()]), strict=True))
    for probe in probes.values():
        ray.kill(probe)
    remove_placement_group(reserved.group)
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        time.sleep(0.05)  # until what was given back can be given again
    return seen


@contextmanager
def two_machines() -> Iterator[None]:
    """Connected to the cluster."""
    machine = {"num_cpus": 4, "num_gpus": 2, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**machine, "include_dashboard": False})
    cluster.add_node(**machine)
    write_ray_address(cluster.address)  # as `ray start` does
    join("auto")
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def planned(spec: RunSpec) -> Any:
    """Where `marlflow plan` would say that each process goes; None if nowhere."""
    machines = free_machines("auto").amounts
    seats = (
        []
        if problems(requests_of(spec), total(machines), machines)
        else place_processes(requests_of(spec), machines, spec.spread)
    )
    return {seat.name: {"machine": seat.machine, "gpus": seat.gpus} for seat in seats or ()} or None


if __name__ == "__main__":
    with closed_template() as template, forked_workers(template), two_machines():
        said = {f"planned {name}": planned(spec) for name, spec in RUNS.items()}
        json.dump({name: places(spec) for name, spec in RUNS.items()} | said, sys.stdout)
