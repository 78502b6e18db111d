"""Measure what many snapshots cost a rollout worker: env steps per second against 50 dealt snapshots and against 2.

    python -m benchmarks.league [--env connect_four rps pgx] [--num-envs 32 128] [--repeats 15] [--profile] [--of 500]

With `--of 500`, against 500 snapshots, of which the worker is dealt at most 50 at once (`store.distinct_members` of a
league), and against 50. `pgx` is connect four in compiled calls, with the extra `pgx`. Other bars of a league:
`python -m benchmarks.league_bars`.

One process on one core: a live policy on one seat, recorded, and a snapshot on the other, drawn uniformly for each
episode (MLP 64 x 64, weights of its own each). Both workers take turns of a fraction of a second, so that other load on
the machine affects both; the result is the median over turns of one's rate divided by the other's. CPU time excludes
other programs.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.util
import os
import pstats
import statistics
import sys
from collections.abc import Mapping, Sequence
from time import perf_counter, process_time
from typing import NamedTuple

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.env import open_adapter
from marlflow.env.make import EnvMaker, make_environment
from marlflow.matchmaking.dealer import Dealer
from marlflow.matchmaking.matchmakers import AllowedSeats, EpisodeId, Matchmaker
from marlflow.policy.actor import Actor
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.torso import MLP
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.population import PopulationChange
from marlflow.sampling.protocol import Matchup, Request

TARGET = 1 / 1.3
TARGET_OF_MORE = 1 / 1.1
TARGET_COMPILED = 0.9
PGX = "marlflow.env.functional.pgx.batched_env"
DISTINCT = 50
TICKS = 64
TURN_S = 0.3
ENVS = {
    "connect_four": ("pettingzoo.classic.connect_four_v3.env", (32, 128)),
    "rps": ("pettingzoo.classic.rps_v2.parallel_env", (16, 128)),
    "pgx": (PGX, (64, 512)),
}


class Rate(NamedTuple):
    """Env steps per second of wall and of CPU time."""

    wall: float
    cpu: float


class Uniform(Matchmaker):
    """Seats `main` against a snapshot; all are as likely as each other."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        """Freeze one more."""
        self.names.append(f"main@{len(self.names)}")
        return PopulationChange({self.names[-1]: "main"})

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Matchup:
        """Return who plays."""
        seats = ["main", self.names[generator.integers(len(self.names))]]
        return dict(zip(agents, generator.permutation(seats).tolist(), strict=True))


class Sampler:
    """A worker whose live policy plays against `snapshots` snapshots, of which it is dealt `distinct` at once."""

    def __init__(self, factory: str, num_envs: int, snapshots: int, distinct: int | None = None) -> None:
        self._factory = factory
        adapter = open_adapter(self._make_env())
        agents = adapter.agents
        self._spaces = Spaces(
            adapter.observation_space(agents[0]), adapter.action_space(agents[0]), adapter.masked(agents[0])
        )
        adapter.close()
        batched = EnvMaker(factory, {}, (), "pgx", True).make_batched if factory == PGX else None
        config = SamplerConfig(
            self._make_env,
            range(num_envs),
            None,
            seed=0,
            spaces={"main": self._spaces},
            make_batched=batched,
            compiled=batched is not None,
        )
        self._worker = RolloutWorker(config, {"main": self._actor})
        random, size = np.random.default_rng(0), self._actor().flat().shape  # type: ignore[attr-defined]
        seats = AllowedSeats(tuple(agents), {"main": tuple(agents)})
        self._num_envs = num_envs
        self._dealer = Dealer(Uniform(), seats, num_envs, 0, distinct_members=distinct)
        for version in range(snapshots):
            weights = Weights(version, 0.1 * random.standard_normal(size).astype(np.float32))
            self._dealer.renew({"main": weights}, {}, {})

    def _make_env(self) -> object:
        return make_environment(self._factory, {}, ())

    def _actor(self) -> Actor:
        return stochastic_actor(self._spaces, MLP((64, 64)), torch.Generator().manual_seed(0))

    def collect(self) -> tuple[int, float, float]:
        """Collect once; return env steps, and seconds of wall and CPU time."""
        # Dealt in advance: a driver deals while the workers step.
        request = self._dealer.with_matchups(Request(0, {}, {}), TICKS, range(self._num_envs))
        began, began_cpu = perf_counter(), process_time()
        receipt, _ = self._worker.collect(TICKS, request)
        wall, cpu = perf_counter() - began, process_time() - began_cpu
        self._dealer.record_receipts([receipt])
        return receipt.env_steps, wall, cpu

    def turn(self) -> Rate:
        """Collect for at least TURN_S seconds."""
        steps, wall, cpu = 0, 0.0, 0.0
        while wall < TURN_S:
            more, seconds, cpu_s = self.collect()
            steps, wall, cpu = steps + more, wall + seconds, cpu + cpu_s
        return Rate(steps / wall, steps / cpu)


def report(env: str, num_envs: int, repeats: int, of: int | None) -> None:
    """Measure and print."""
    factory = ENVS[env][0]
    one = Sampler(factory, num_envs, 2 if of is None else DISTINCT)
    other = Sampler(factory, num_envs, DISTINCT) if of is None else Sampler(factory, num_envs, of, DISTINCT)
    target, fewer = (TARGET, "2") if of is None else (TARGET_OF_MORE, str(DISTINCT))
    if factory == PGX:
        target = TARGET_COMPILED if of is None else target
        # Until nothing is compiled any more.
        for sampler in (one, other):
            for _ in range(4):
                sampler.turn()
    turns = [(one.turn(), other.turn()) for _ in range(repeats + 1)][1:]
    ratio = statistics.median(many.wall / few.wall for few, many in turns)
    of_cpu = statistics.median(many.cpu / few.cpu for few, many in turns)
    rates = [statistics.median(rate.wall for rate in column) for column in zip(*turns, strict=True)]
    verdict = "reached" if ratio >= target else "MISSED"
    print(
        f"{env}, {num_envs} environments: {rates[0]:,.0f} env steps/s with {fewer} snapshots, {rates[1]:,.0f} with "
        f"{of or DISTINCT}: ratio {ratio:.3f} (by CPU time {of_cpu:.3f}), target {target:.2f}: {verdict}",
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
    usual = [env for env in ENVS if env != "pgx" or importlib.util.find_spec("pgx") is not None]
    parser.add_argument("--env", choices=list(ENVS), nargs="+", default=usual)
    parser.add_argument("--num-envs", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--of", type=int, help=f"so many snapshots, {DISTINCT} at once, against {DISTINCT}")
    parser.add_argument("--profile", action="store_true", help="where a worker's time goes instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for env in options.env:
        for num_envs in options.num_envs or ENVS[env][1]:
            if options.profile:
                profile(env, num_envs)
            else:
                report(env, num_envs, options.repeats, options.of)


if __name__ == "__main__":
    main(sys.argv[1:])
