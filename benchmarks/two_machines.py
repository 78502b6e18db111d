"""Count the bytes of rows that reach each machine: of the workers, of the learner, and of the driver.

Three nodes of a Ray cluster, all on this machine, each with an object store of its own: the driver's, one with two
rollout workers, one with the learner. Nodes copy objects from one store to another as machines do.

python -m benchmarks.two_machines
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.cluster_utils import Cluster
from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

from marlflow.algorithms.ppo import PPO
from marlflow.checks.validation import ready
from marlflow.config.experiment import (
    Env,
    Evaluation,
    Experiment,
    Log,
    PlacementOverrides,
    Policy,
    Rollouts,
    RuntimeConfig,
)
from marlflow.config.plans import RoundHooks, build_plan
from marlflow.env.games.cartpole_team import parallel_env
from marlflow.flow import Executor
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.spec import Resources
from marlflow.sampling.mapping import Rule
from marlflow.sampling.protocol import Request, Round

FRAGMENT_ENV_STEPS = 2_560
"""A fragment of four cart-poles is then above the 100 kB up to which Ray sends results to the driver's process."""


def experiment() -> Experiment:
    """Return PPO for all, with the workers and the learner where their resources are."""
    learner = PlacementOverrides(num_cpus=1, resources={"learning": 1.0})
    ppo = PPO(batch_agent_steps=1_000, epochs=1, minibatch_agent_steps=1_000)
    return Experiment(
        env=Env(parallel_env, num_envs=32),
        policies={"team": Policy(ppo, placement=learner)},
        mapping=[Rule("*", "team")],
        rollouts=Rollouts(2, FRAGMENT_ENV_STEPS, placement=Resources(num_cpus=1, resources={"sampling": 1.0})),
        runtime=RuntimeConfig("ray"),
        evaluation=Evaluation(episodes=0),
        log=Log(console="none", jsonl=False, tensorboard=False),
    )


@contextmanager
def three_nodes() -> Iterator[None]:
    """Start the cluster and connect to the driver's node."""
    store = {"object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    cluster.add_node(num_cpus=2, resources={"sampling": 2.0}, **store)
    cluster.add_node(num_cpus=1, resources={"learning": 1.0}, **store)
    ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def bytes_created() -> dict[str, int]:
    """Return the bytes of all objects that ever were in each node's store: made there, or copied there."""
    created = {}
    for node in ray.nodes():
        role = next((name for name in ("sampling", "learning") if name in node["Resources"]), "driver")
        # With the token of the cluster, if it asks for one.
        with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
            stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
            reply = stub.GetNodeStats(node_manager_pb2.GetNodeStatsRequest(include_memory_info=False), timeout=10)
        created[role] = reply.store_stats.cumulative_created_bytes
    return created


def measure(rounds: int = 10) -> tuple[int, Mapping[str, int]]:
    """Train for some rounds; return the agent steps, and the bytes that each store received meanwhile."""
    rows = 0
    setting = experiment()
    made, runtime = ready(setting), RayRuntime()
    try:
        parts = runtime.start(made.spec)
        requests = iter(range(rounds))

        def count(round: Round) -> Round:
            nonlocal rows
            rows += round.rows
            return round

        def next_request() -> Request | None:
            number = next(requests, None)
            return None if number is None else Request(number, parts.published())

        before = bytes_created()
        asyncio.run(Executor(build_plan(setting, made.spec, parts, RoundHooks(next_request, count))).run())
        after = bytes_created()
    finally:
        runtime.close()
    return rows, {role: after[role] - before[role] for role in after}


def report() -> None:
    """Measure and print."""
    with three_nodes():
        rows, received = measure()
    listed = ", ".join(f"{role} {size:,} bytes" for role, size in sorted(received.items()))
    print(f"{rows:,} agent steps in 10 rounds of 2 workers; objects in each node's store: {listed}", flush=True)


if __name__ == "__main__":
    report()
