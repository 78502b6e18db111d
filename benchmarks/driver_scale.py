"""How many rollout workers and learners one driver can serve: its CPU time for a round, a fragment and a version.

The run is real, with its plans, executor, requests, receipts and metrics; the actors are simulated
(`benchmarks.simulated_ray`). Half of the policies learn with PPO, half with DQN.

python -m benchmarks.driver_scale [--workers 1,32,1024] [--learners 1,8,32]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.simulated_ray import Counted, Load, SimulatedRuntime
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.config.checks import check
from marlflow.config.experiment import CheckpointConfig, Env, Evaluation, Experiment, Log, Policy, Rollouts, RuntimeConfig, Stop
from marlflow.driver.train import _run_exclusively
from marlflow.env.cartpole_team import parallel_env
from marlflow.runtime.resources import Machines
from marlflow.sampling.mapping import Rule

ENVS_PER_WORKER = 16
TICKS = 25
UPDATES_PER_ROUND = 64
WARM_UP = 3
"""Rounds before the measured ones."""


def experiment(workers: int, learners: int, load: Load, rounds: int, pace: str = "lockstep") -> Experiment:
    """Return the experiment: one agent for each policy."""
    sampled = load.agent_steps * workers
    ppo = PPO(batch_agent_steps=sampled, minibatch_agent_steps=min(128, sampled))
    dqn = DQN(train_every_agent_steps=max(1, sampled // UPDATES_PER_ROUND), learning_starts_agent_steps=0)
    names = [f"policy_{number}" for number in range(learners)]
    kinds = {name: dqn if number % 2 else ppo for number, name in enumerate(names)}
    env_steps = workers * ENVS_PER_WORKER * TICKS
    return Experiment(
        env=Env(parallel_env, {"num_agents": learners}, num_envs=workers * ENVS_PER_WORKER),
        policies={name: Policy(kind) for name, kind in kinds.items()},
        mapping=[Rule(f"cart_{number}", name) for number, name in enumerate(names)],
        rollouts=Rollouts(workers, ENVS_PER_WORKER * TICKS, pace),
        runtime=RuntimeConfig("ray"),
        stop=Stop(env_steps=env_steps * (rounds + WARM_UP)),
        evaluation=Evaluation(episodes=0),
        checkpoint=CheckpointConfig(every_env_steps=None),
        log=Log(every_env_steps=env_steps, console="none", tensorboard=False),
    )


@dataclass(frozen=True)
class Figures:
    """Medians over rounds."""

    wall_s: float
    driver_s: float
    """CPU seconds of the driver."""
    calls: float
    references: float
    sent_bytes: float
    updates: float


def measure(workers: int, learners: int, load: Load, rounds: int = 8) -> Figures:
    """Run, and return the driver's cost of a round."""
    checked = check(experiment(workers, learners, load, rounds), machines=Machines([{"CPU": 1e6}], here=False))
    runtime = SimulatedRuntime(load)
    with tempfile.TemporaryDirectory() as folder:
        _run_exclusively(checked, runtime, Path(folder), None, {})
    begins = runtime.counted.round_begins
    walls, cpus = zip(*[(b[0] - a[0], b[1] - a[1]) for a, b in zip(begins[WARM_UP:], begins[WARM_UP + 1 :])])
    c, n = runtime.counted, len(begins)
    return Figures(statistics.median(walls), statistics.median(cpus), c.calls / n, c.references / n, c.sent_bytes / n, c.updates / n)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="1,32,256,1024")
    parser.add_argument("--learners", default="1,2,8,32")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--collect-s", type=float, default=0.2)
    options = parser.parse_args(arguments)
    for learners in map(int, options.learners.split(",")):
        for workers in map(int, options.workers.split(",")):
            f = measure(workers, learners, Load(collect_s=options.collect_s, episodes=options.episodes))
            print(
                f"{workers:5} workers, {learners:2} learners: {f.driver_s * 1e3:8.1f} ms of CPU a round, wall {f.wall_s * 1e3:8.1f} ms, {f.driver_s / workers * 1e6:7.1f} us a fragment, "
                f"{f.references:,.0f} references, {f.sent_bytes / 1e3:,.0f} kB sent, {f.updates:.0f} updates",
                flush=True,
            )


if __name__ == "__main__":
    main()
