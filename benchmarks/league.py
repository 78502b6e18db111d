"""Measure what many snapshots cost a rollout worker: env steps per second against 50 dealt snapshots and against 2.

    python -m benchmarks.league [--env connect_four rps] [--num-envs 32 128] [--repeats 15] [--profile]

One process on one core: a live policy on one seat, recorded, and a snapshot on the other, drawn uniformly for each
episode (MLP 64 x 64, weights of its own each). Both workers take turns of a fraction of a second, so that other load on
the machine affects both; the result is the median over turns of one's rate divided by the other's. CPU time excludes
other programs.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import sys
from collections.abc import Sequence
from time import perf_counter, process_time
from typing import NamedTuple

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from marlflow.base.items import Weights
from marlflow.base.spaces import Spaces
from marlflow.env import open_adapter
from marlflow.env.make import make_environment
from marlflow.policy.actor import Actor
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.torso import MLP
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.protocol import FrozenPolicy, Matchup

TARGET = 1 / 1.3
TICKS = 64
TURN_S = 0.3
ENVS = {
    "connect_four": ("pettingzoo.classic.connect_four_v3.env", (32, 128)),
    "rps": ("pettingzoo.classic.rps_v2.parallel_env", (16, 128)),
}


class Rate(NamedTuple):
    """Env steps per second of wall and of CPU time."""

    wall: float
    cpu: float


class Sampler:
    """A worker whose live policy plays against `snapshots` snapshots."""

    def __init__(self, factory: str, num_envs: int, snapshots: int) -> None:
        self._factory = factory
        adapter = open_adapter(self._make_env())
        agents = adapter.agents
        self._spaces = Spaces(
            adapter.observation_space(agents[0]), adapter.action_space(agents[0]), adapter.masked(agents[0])
        )
        adapter.close()
        config = SamplerConfig(self._make_env, range(num_envs), None, seed=0, spaces={"main": self._spaces})
        self._worker = RolloutWorker(config, {"main": self._actor})
        self._agents, self._random = tuple(agents), np.random.default_rng(0)
        size, names = self._actor().flat().shape, [f"main@{number}" for number in range(snapshots)]  # type: ignore[attr-defined]
        self._frozen = {
            name: FrozenPolicy("main", Weights(version, 0.1 * self._random.standard_normal(size).astype(np.float32)))
            for version, name in enumerate(names)
        }
        self._names = names
        self._sends = dict(self._frozen)

    def _make_env(self) -> object:
        return make_environment(self._factory, {}, ())

    def _actor(self) -> Actor:
        return stochastic_actor(self._spaces, MLP((64, 64)), torch.Generator().manual_seed(0))

    def _deal(self) -> Matchup:
        seats = ["main", self._names[self._random.integers(len(self._names))]]
        return dict(zip(self._agents, self._random.permutation(seats).tolist(), strict=True))

    def collect(self) -> tuple[int, float, float]:
        """Collect once; return env steps, and seconds of wall and CPU time."""
        # Dealt in advance: a driver deals while the workers step.
        envs = range(len(self._worker._config.env_indices))
        matchups = {index: [self._deal() for _ in range(TICKS // 5)] for index in envs}
        began, began_cpu = perf_counter(), process_time()
        receipt, _ = self._worker.collect(TICKS, None, None, matchups, self._sends)
        self._sends = {}
        return receipt.env_steps, perf_counter() - began, process_time() - began_cpu

    def turn(self) -> Rate:
        """Collect for at least TURN_S seconds."""
        steps, wall, cpu = 0, 0.0, 0.0
        while wall < TURN_S:
            more, seconds, cpu_s = self.collect()
            steps, wall, cpu = steps + more, wall + seconds, cpu + cpu_s
        return Rate(steps / wall, steps / cpu)


def report(env: str, num_envs: int, repeats: int) -> None:
    """Measure and print."""
    two, fifty = (Sampler(ENVS[env][0], num_envs, snapshots) for snapshots in (2, 50))
    turns = [(two.turn(), fifty.turn()) for _ in range(repeats + 1)][1:]
    ratio = statistics.median(many.wall / few.wall for few, many in turns)
    of_cpu = statistics.median(many.cpu / few.cpu for few, many in turns)
    rates = [statistics.median(rate.wall for rate in column) for column in zip(*turns, strict=True)]
    verdict = "reached" if ratio >= TARGET else "MISSED"
    print(
        f"{env}, {num_envs} environments: {rates[0]:,.0f} env steps/s with 2 snapshots, {rates[1]:,.0f} with 50: "
        f"ratio {ratio:.3f} (by CPU time {of_cpu:.3f}), target {TARGET:.2f}: {verdict}",
        flush=True,
    )


def profile(env: str, num_envs: int) -> None:
    """Print a worker's time by function, against 50 snapshots."""
    sampler, profiler = Sampler(ENVS[env][0], num_envs, 50), cProfile.Profile()
    sampler.turn()
    profiler.runcall(lambda: [sampler.turn() for _ in range(5)])
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the ratios of all environments, or of those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=list(ENVS), nargs="+", default=list(ENVS))
    parser.add_argument("--num-envs", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="where a worker's time goes instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for env in options.env:
        for num_envs in options.num_envs or ENVS[env][1]:
            if options.profile:
                profile(env, num_envs)
            else:
                report(env, num_envs, options.repeats)


if __name__ == "__main__":
    main(sys.argv[1:])
