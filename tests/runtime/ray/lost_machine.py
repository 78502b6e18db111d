"""Trains on a cluster of two machines, of which one is lost and another comes; prints what the run says of it.

A process of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import marlflow as mf
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.stop_conditions import StopConditions
from marlflow.sampling.receipts import Receipt
from tests.forked_workers import closed_template, forked_workers
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run

STAYS = mf.PlacementOverrides(num_cpus=1, resources={"stays": 1.0})
POLICIES = {"hunters": mf.Policy(SMALL_PPO, SMALL, STAYS), "prey": mf.Policy(SMALL_DQN, SMALL, STAYS)}
LOST_AT_ROUND, ROUNDS_ALONE, ROUNDS_AFTER = 5, 8, 3


class Watched:
    """Loses the second machine in round 5, and has another 8 rounds after; notes which workers took part."""

    def __init__(self, cluster: Cluster, second: object) -> None:
        self.cluster, self.second = cluster, second
        self.took_part: list[list[int]] = []
        self._collected = RunMetrics.collected

    def collected(self, tally: RunMetrics, receipts: Sequence[Receipt]) -> None:
        self._collected(tally, receipts)
        self.took_part.append([receipt.worker for receipt in receipts])
        if len(self.took_part) == LOST_AT_ROUND:
            self.cluster.remove_node(self.second, allow_graceful=False)
        if len(self.took_part) == LOST_AT_ROUND + ROUNDS_ALONE:
            self.cluster.add_node(num_cpus=1)

    @property
    def is_whole_again(self) -> bool:
        """Whether the worker that was lost has taken part again."""
        return all(len(workers) == 2 for workers in self.took_part[-ROUNDS_AFTER:]) and self.has_been_lost

    @property
    def has_been_lost(self) -> bool:
        return [0] in self.took_part and len(self.took_part) > LOST_AT_ROUND + ROUNDS_ALONE


def main(run_dir: Path) -> None:
    """Four CPUs for two learners and two workers: only the second worker fits the second machine."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "resources": {"stays": 2.0}})
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    watched = Watched(cluster, second)

    def collected(tally: RunMetrics, receipts: Sequence[Receipt]) -> None:
        watched.collected(tally, receipts)

    RunMetrics.collected = collected  # type: ignore[method-assign]
    stop = mf.Stop(env_steps=None, time_s=120.0)
    rollouts = mf.Rollouts(num_workers=2, fragment_env_steps=40, placement=mf.Resources(num_cpus=1))
    experiment = small_run("ray", policies=POLICIES, rollouts=rollouts, stop=stop, checkpoint=mf.CheckpointConfig(None))
    stop_reason = StopConditions.reason
    StopConditions.reason = lambda stops: "whole again" if watched.is_whole_again else stop_reason(stops)  # type: ignore[method-assign]
    try:
        result = mf.train(experiment, run_dir)
        faults = result.metrics["faults"]
        took_part = [workers for workers, _ in groupby(watched.took_part)]
        json.dump({"stopped_by": result.stopped_by, "faults": faults, "took_part": took_part}, sys.stdout)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    with closed_template() as template, forked_workers(template):
        main(Path(sys.argv[1]))
