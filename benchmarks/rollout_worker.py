"""Measure a rollout worker's share of an environment's bare speed, in one process on one core.

    python -m benchmarks.rollout_worker [--env connect_four] [--num-envs 32] [--repeats 15] [--memory] [--profile]

Worker: all environments stepped in lockstep, a randomly initialized network per policy (MLP 64 x 64; for pixels a CNN,
whose time is left out), all rows recorded. Bare: see `benchmarks.bare`. The main result is the worker's env steps per
second divided by bare stepping's, with a seed for each episode, as a worker resets; the ratio to a loop that
seeds once is printed too. So are agent steps per second: an env step has one for each living agent.

All three take turns of a fraction of a second, so that other load on the machine affects all of them; the ratio is the
median over turns. `best` compares the best turn of each; CPU time excludes other programs.
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

import torch

from benchmarks.bare import Bare, Played
from benchmarks.rollout_cases import CASES, Case
from benchmarks.worker_memory import report_memory
from marlflow.sampling import RolloutWorker


class Collected(NamedTuple):
    """A worker's steps, and its seconds in environments, in policies, and in bookkeeping."""

    played: Played
    env_s: float
    policy_s: float
    bookkeeping_s: float


def collect(worker: RolloutWorker, case: Case, seconds: float) -> Collected:
    """Collect for at least `seconds`; with pixels, seconds in the network do not count."""
    env_steps = agent_steps = episodes = 0
    spent = spent_cpu = env_s = policy_s = bookkeeping_s = 0.0
    while spent < seconds:
        began, began_cpu = perf_counter(), process_time()
        receipt, _ = worker.collect(case.ticks)
        wall, cpu = perf_counter() - began, process_time() - began_cpu
        counted = 1.0 - receipt.policy_s / wall if case.pixels else 1.0
        spent, spent_cpu = spent + counted * wall, spent_cpu + counted * cpu
        env_steps, agent_steps = env_steps + receipt.env_steps, agent_steps + receipt.agent_steps
        episodes += len(receipt.episodes)
        env_s, policy_s = env_s + receipt.env_s, policy_s + receipt.policy_s
        bookkeeping_s += receipt.bookkeeping_s
    return Collected(Played(env_steps, agent_steps, episodes, spent, spent_cpu), env_s, policy_s, bookkeeping_s)


class Measured(NamedTuple):
    """The turns of one environment: bare with one seed, bare with a seed per episode, and in a worker."""

    once: Sequence[Played]
    seeded: Sequence[Played]
    worker: Sequence[Collected]


def measure(case: Case, num_envs: int | None, repeats: int) -> Measured:
    """Measure all three in turns; the first turn does not count."""
    once, seeded, worker = Bare(case.make(), seeded=False), Bare(case.make(), seeded=True), case.worker(num_envs)
    seconds = case.turn_s
    turns = [(once.play(seconds), seeded.play(seconds), collect(worker, case, seconds)) for _ in range(repeats + 1)]
    worker.close()
    return Measured(*zip(*turns[1:], strict=True))


def report(case: Case, num_envs: int | None = None, repeats: int = 15) -> None:
    """Measure and print."""
    measured = measure(case, num_envs, repeats)
    worker = [one.played for one in measured.worker]
    kept = _kept(measured.seeded, worker)
    verdict = "reached" if kept >= case.target else "MISSED"
    best = _best(worker).env_rate / _best(measured.seeded).env_rate
    of_cpu = statistics.median(
        w.env_steps * b.cpu_s / (b.env_steps * w.cpu_s) for b, w in zip(measured.seeded, worker, strict=True)
    )
    of = f"{num_envs or case.num_envs} environments"
    print(f"{case.name}, {of}: {kept:.3f} of bare env steps/s, target {case.target:.2f}: {verdict}")
    print(
        f"  best of each {best:.3f}, by CPU time {of_cpu:.3f}, of bare seeded once {_kept(measured.once, worker):.3f}"
    )
    rows = {"bare, a seed each": measured.seeded, "bare, seeded once": measured.once, "worker": worker}
    for name, turns in rows.items():
        print(f"  {name:18s}{_rates(turns)}")
    agent_steps = sum(one.agent_steps for one in worker)
    parts = zip(
        ("environment", "policy", "bookkeeping"), zip(*(one[1:] for one in measured.worker), strict=True), strict=True
    )
    spent = ", ".join(f"{name} {1e6 * sum(seconds) / agent_steps:.2f}" for name, seconds in parts)
    print(f"  the worker's us per agent step: {spent}", flush=True)


def _kept(bare: Sequence[Played], worker: Sequence[Played]) -> float:
    """Return the median over turns of the worker's env steps per second divided by bare ones."""
    return statistics.median(w.env_rate / b.env_rate for b, w in zip(bare, worker, strict=True))


def _best(turns: Sequence[Played]) -> Played:
    return max(turns, key=lambda one: one.env_rate)


def _rates(turns: Sequence[Played]) -> str:
    env_rate, agent_rate = (
        statistics.median(rates) for rates in zip(*((t.env_rate, t.agent_rate) for t in turns), strict=True)
    )
    length = sum(one.env_steps for one in turns) / max(1, sum(one.episodes for one in turns))
    return (
        f"{env_rate:9,.0f} env steps/s{agent_rate:9,.0f} agent steps/s, best{_best(turns).env_rate:9,.0f}"
        f"{_best(turns).agent_rate:9,.0f}, {length:.1f} env steps an episode"
    )


def profile(case: Case, num_envs: int | None) -> None:
    """Print the worker's time by function."""
    worker, profiler = case.worker(num_envs), cProfile.Profile()
    worker.collect(case.ticks)
    profiler.runcall(collect, worker, case, 2.0)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the ratios of all installed environments, or of those named."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=names, nargs="+", default=names)
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--memory", action="store_true", help="resident memory over 2 million agent steps instead")
    parser.add_argument("--profile", action="store_true", help="where the worker's time goes instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for case in CASES:
        if case.name not in options.env:
            continue
        if missing := case.missing():
            print(f"{case.name}: not measured: {missing}", flush=True)
        elif options.profile:
            profile(case, options.num_envs)
        elif options.memory:
            report_memory(case)
        else:
            report(case, options.num_envs, options.repeats)


if __name__ == "__main__":
    main(sys.argv[1:])
