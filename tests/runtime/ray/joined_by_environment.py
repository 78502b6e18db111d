"""Starts a cluster, names it by RAY_ADDRESS, and prints what a run that says nothing of an address then does.

A process of its own, because a process can be connected to one Ray only. The run's workers need a resource that only
this cluster has.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ray.cluster_utils import Cluster

import marlflow as mf
from marlflow.checks.commands import machines_to_plan_for
from tests.forked_workers import closed_template, forked_workers
from tests.runtime.small_runs import small_run

ONLY_THERE = {"only_there": 4.0}

if __name__ == "__main__":
    with closed_template() as template, forked_workers(template), tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 4,
                "resources": ONLY_THERE,
                "object_store_memory": 80 * 2**20,
                "include_dashboard": False,
            },
        )
        os.environ["RAY_ADDRESS"] = cluster.address
        try:
            placed = mf.Resources(num_cpus=0.5, resources={"only_there": 1.0})
            rollouts = mf.Rollouts(num_workers=2, fragment_env_steps=40, placement=placed)
            experiment = replace(small_run("ray", env_steps=160), rollouts=rollouts)
            machines = machines_to_plan_for(experiment)
            result = mf.train(experiment, Path(folder))
            printed = {
                "planned": machines is not None and machines.amounts[0].get("only_there"),
                "env_steps": result.metrics["env_steps"],
            }
        finally:
            cluster.shutdown()
    json.dump(printed, sys.stdout)
