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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from benchmarks.simulated_ray import Load, SimulatedRuntime
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.checks.commands import check
from marlflow.config.experiment import (
    CheckpointConfig,
    Env,
    Evaluation,
    Experiment,
    Log,
    Policy,
    Rollouts,
    RuntimeConfig,
    Stop,
)
from marlflow.driver.train import _run_exclusively
from marlflow.env.games.cartpole_team import parallel_env
from marlflow.runtime.resources import Machines
from marlflow.sampling.mapping import Rule

Pace = Literal["lockstep", "overlap", "asynchronous"]
ENVS_PER_WORKER = 16
TICKS = 25
UPDATES_PER_ROUND = 64
WARM_UP = 3
"""Rounds before the measured ones."""
COLLECT_S = 0.2
"""Seconds of a simulated collect. The driver's CPU time for a round does not depend on it."""


def experiment(workers: int, learners: int, load: Load, rounds: int, pace: Pace = "lockstep") -> Experiment:
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
    """The figures of one round: medians of seconds, and means of counts."""

    wall_s: float
    driver_s: float
    """CPU seconds of the driver's thread."""
    references: float
    """Return values of calls, which the driver owns without opening them."""
    sent_bytes: float
    versions: float
    updates: float


def measure(workers: int, learners: int, load: Load, rounds: int = 10) -> Figures:
    """Run, and return the driver's cost of a round."""
    checked = check(experiment(workers, learners, load, rounds), machines=Machines([{"CPU": 1e6}], here=False))
    runtime = SimulatedRuntime(load)
    with tempfile.TemporaryDirectory() as folder:
        _run_exclusively(checked, runtime, Path(folder), None, {})
    counted, begins = runtime.counted, runtime.counted.round_begins
    spent = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(begins[WARM_UP:])]
    walls, cpus = zip(*spent, strict=True)
    totals = (counted.references, counted.sent_bytes, counted.versions, counted.updates)
    return Figures(statistics.median(walls), statistics.median(cpus), *(total / len(begins) for total in totals))


def report(workers: Sequence[int], learners: Sequence[int], load: Load) -> None:
    """Measure and print, a line for each number of workers and learners."""
    for num_learners in learners:
        for num_workers in workers:
            cost = measure(num_workers, num_learners, load)
            print(
                f"{num_workers:5} workers, {num_learners:2} learners: {cost.driver_s * 1e3:7.1f} ms of CPU of the "
                f"driver a round, {cost.driver_s / num_workers * 1e6:7.1f} us a worker, "
                f"{cost.driver_s / num_workers / num_learners * 1e6:7.1f} us a fragment, "
                f"{cost.driver_s / cost.versions * 1e6:7.1f} us a version; {cost.references:,.0f} references, "
                f"{cost.sent_bytes / 1e3:,.0f} kB sent, {cost.updates:.0f} updates; "
                f"with fragments of 1 s {cost.driver_s:.2f} of a core",
                flush=True,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,32,256,1024", help="numbers of workers (default: %(default)s)")
    parser.add_argument("--learners", default="1,2,8,32", help="numbers of learners (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=10, help="that end in a worker's round (default: %(default)s)")
    options = parser.parse_args(arguments)
    load = Load(collect_s=COLLECT_S, episodes=options.episodes)
    report(_numbers(options.workers), _numbers(options.learners), load)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
