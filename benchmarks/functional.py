"""Measure a rollout worker on functional environments: microseconds of CPU time per env step, ticked and compiled.

    OMP_NUM_THREADS=1 python -m benchmarks.functional [--cases spread lbf] [--seconds 2] [--two-workers]

One policy (MLP, 64 x 64, in connect four 128 x 128) acts for all agents, and its rows are delivered. A fragment has 128
ticks; the first fragments, which compile, do not count, and figures are medians of those in the seconds after them. In
single steps a tick is one call of the environments and one of the policy; compiled, a fragment is one call. With
`--two-workers`, two processes begin to measure at once, by the clock, and one alone. Needs the extras `lbf`, `jaxmarl`,
`jumanji`, `pgx` and `rware`; cases whose suite is not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter, process_time
from typing import Any, NamedTuple

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.env.batched.protocol import BatchedEnv
from marlflow.env.make import EnvMaker
from marlflow.policy.actor import Actor
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.torso import MLP
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.protocol import Request

TICKS = 128
WARM_UP = 4
"""Fragments before those that count: resets of other numbers of environments are other programs."""
POLICY = "all"
_PACKAGES = {"lbf": "lbforaging"}
"""Of extras that are not called like their package."""


class Case(NamedTuple):
    """An environment, the numbers of environments, and the target of a compiled env step in microseconds."""

    suite: str
    arguments: Mapping[str, Any]
    num_envs: Sequence[int]
    target_us: float | None = None
    hidden: int = 64


CASES: Mapping[str, Case] = {
    "spread": Case("jaxmarl", {"name": "MPE_simple_spread_v3"}, (16, 128), 5.0),
    "smax": Case("jaxmarl", {"name": "HeuristicEnemySMAX", "parameters": {"scenario": "3m"}}, (16, 64), 13.0),
    "overcooked": Case("jaxmarl", {"name": "overcooked_v2"}, (16, 128)),
    "lbf": Case("jumanji", {"name": "LevelBasedForaging-v0"}, (16, 128), 3.0),
    "foraging": Case("lbf", {"id": "Foraging-10x10-3p-3f-v3"}, (16, 64)),
    "rware": Case("jumanji", {"name": "RobotWarehouse-v0"}, (16, 128), 25.0),
    "warehouse": Case("rware", {"id": "rware-tiny-4ag-v2"}, (16, 64), 8.0),
    "connector": Case("jumanji", {"name": "Connector-v3"}, (16, 128)),
    "connect_four": Case("pgx", {"name": "connect_four"}, (64, 512), 1.5, 128),
    "leduc": Case("pgx", {"name": "leduc_holdem"}, (64, 512)),
    "go": Case("pgx", {"name": "go_9x9"}, (64,), None, 128),
}


class Sampler:
    """A worker of `num_envs` environments of a case."""

    def __init__(self, case: Case, num_envs: int, compiled: bool) -> None:
        maker = EnvMaker(f"marlflow.env.functional.{case.suite}.batched_env", case.arguments, (), case.suite, True)
        assert maker.make_batched is not None, "functional environments are batched"
        probe: BatchedEnv = maker.make_batched(1)
        agents = list(probe.possible_agents)
        masked = bool(probe.reset(np.zeros(1, np.int64), np.zeros(1, np.int64)).action_masks)
        spaces = Spaces(probe.observation_space(agents[0]), probe.action_space(agents[0]), masked)
        config = SamplerConfig(
            maker,
            range(num_envs),
            dict.fromkeys(agents, POLICY),
            seed=0,
            make_batched=maker.make_batched,
            compiled=compiled,
        )

        def actor() -> Actor:
            hidden = (case.hidden, case.hidden)
            return stochastic_actor(spaces, MLP(hidden), torch.Generator().manual_seed(0))

        self._worker = RolloutWorker(config, {POLICY: actor})
        self._weights = {POLICY: Weights(0, actor().flat())}  # type: ignore[attr-defined]

    def collect(self) -> tuple[int, float]:
        """Collect a fragment with at least a row; return its env steps, and microseconds of CPU time per env step."""
        cpu = process_time()
        receipt, _ = self._worker.collect(TICKS, Request(0, self._weights, {}))
        assert receipt.policies[POLICY].rows, "rows are delivered"
        return receipt.env_steps, (process_time() - cpu) / receipt.env_steps * 1e6


_all_are_ready: list[Any] = []


def measured(name: str, num_envs: int, compiled: bool, seconds: float) -> tuple[float, float]:
    """Return the median of microseconds of CPU time per env step, and env steps per second by the clock."""
    torch.set_num_threads(1)
    sampler = Sampler(CASES[name], num_envs, compiled)
    for _ in range(WARM_UP):
        sampler.collect()
    for barrier in _all_are_ready:
        barrier.wait()
    began, steps, found = perf_counter(), 0, []
    while (spent := perf_counter() - began) < seconds:
        env_steps, us = sampler.collect()
        steps += env_steps
        found.append(us)
    return statistics.median(found), steps / spent


def together(count: int, *given: Any) -> list[tuple[float, float]]:
    """Return what `count` processes, which begin at once, have `measured`."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _all_are_ready.append, (context.Barrier(count),)) as pool:
        return [each.result() for each in [pool.submit(measured, *given) for _ in range(count)]]


def report(name: str, seconds: float, two_workers: bool) -> None:
    """Print a line for each number of environments."""
    case = CASES[name]
    for num_envs in case.num_envs:
        ((ticked, _),) = together(1, name, num_envs, False, seconds)
        ((compiled, one),) = together(1, name, num_envs, True, seconds)
        line = f"{name}, {num_envs} environments: ticked {ticked:.1f} us, compiled {compiled:.1f} us"
        line += f", {ticked / compiled:.1f} times"
        if case.target_us is not None:
            line += f"; target {case.target_us:g}: {'reached' if compiled <= case.target_us else 'MISSED'}"
        if two_workers:
            two = sum(of_one for _, of_one in together(2, name, num_envs, True, seconds))
            line += f"; one worker {one:,.0f} env steps/s, two {two:,.0f}"
        print(line, flush=True)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the figures of all cases whose suite is installed, or of those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", choices=list(CASES), nargs="+", default=list(CASES))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--two-workers", action="store_true", help="env steps per second by the clock, too")
    options = parser.parse_args(arguments)
    for name in options.cases:
        extra = CASES[name].suite
        if importlib.util.find_spec(_PACKAGES.get(extra, extra)) is None:
            print(f"{name}: not measured, the extra {extra} is not installed", flush=True)
        else:
            report(name, options.seconds, options.two_workers)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
