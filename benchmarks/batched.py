"""Measure workers whose environments are stepped by one call, against stepping the PettingZoo version bare.

    python -m benchmarks.batched [--env simple_spread] [--num-envs 512] [--repeats 5] [--profile]

Worker: an MLP of 64 x 64 with random weights for each policy, all rows recorded, each episode with its seed. Bare: one
environment, random legal actions, no policy (see `benchmarks.bare`). All take turns; ratios are medians over turns of
agent steps per second of CPU time, so that other programs do not count. With two workers, each is a process of its own,
and both collect at the same time.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import os
import pstats
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import process_time

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.bare import Bare
from benchmarks.rollout_cases import Case
from marlflow.sampling import RolloutWorker, Rule

_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Batched:
    """A case, with the number of environments of a worker, and the ratio to bare that it is to reach.

    `enough` agent steps per second also do. The bar is for `workers` workers.
    """

    case: Case
    num_envs: int
    bar: float
    workers: int = 1
    enough: float = float("inf")


CASES = (
    Batched(
        Case(
            "cartpole_team", 0.0, "marlflow.env.games.cartpole_team.parallel_env", rules=(Rule("*", "all"),), ticks=64
        ),
        num_envs=1024,
        bar=4.0,
        workers=2,
        enough=1e6,
    ),
    Batched(Case("simple_spread", 0.0, "mpe2.simple_spread_v3.parallel_env", ticks=64), num_envs=512, bar=30.0),
    Batched(
        Case("connect_four", 0.0, "pettingzoo.classic.connect_four_v3.env", rules=(Rule("*", "all"),), ticks=64),
        num_envs=1024,
        bar=20.0,
    ),
)


def agent_steps_per_s(worker: RolloutWorker, ticks: int, seconds: float = _SECONDS) -> float:
    """Collect for at least `seconds` of CPU time; return agent steps per second of it."""
    steps, began = 0, process_time()
    while (spent := process_time() - began) < seconds:
        steps += worker.collect(ticks)[0].agent_steps
    return steps / spent


def _collect_on_demand(case: Case, num_envs: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    worker = case.worker(num_envs, batched=True)
    worker.collect(case.ticks)
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        pipe.send(agent_steps_per_s(worker, case.ticks, seconds))
    worker.close()


class TwoProcesses:
    """Two processes with a worker each, that collect at the same time."""

    def __init__(self, batched: Batched) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        for _ in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_collect_on_demand, args=(batched.case, batched.num_envs, theirs))
            process.start()
            self._pipes.append(ours)
        for pipe in self._pipes:
            pipe.recv()

    def agent_steps_per_s(self) -> float:
        """Return the sum of both rates."""
        for pipe in self._pipes:
            pipe.send(_SECONDS)
        return sum(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)


def report(batched: Batched, num_envs: int | None = None, repeats: int = 5) -> None:
    """Measure one case, and print its ratios."""
    case = batched.case
    batched = Batched(case, num_envs or batched.num_envs, batched.bar, batched.workers, batched.enough)
    bare, one, two = Bare(case.make(), seeded=True), case.worker(batched.num_envs, batched=True), TwoProcesses(batched)
    rates: dict[str, list[float]] = {"bare": [], "one": [], "two": []}
    for _ in range(repeats + 1):
        played = bare.play(_SECONDS)
        rates["bare"].append(played.agent_steps / played.cpu_s)
        rates["one"].append(agent_steps_per_s(one, case.ticks))
        rates["two"].append(two.agent_steps_per_s())
    one.close()
    two.close()
    # The first turn does not count.
    bare_rates = rates["bare"][1:]
    for name, workers in (("one", 1), ("two", 2)):
        of_turns = rates[name][1:]
        ratio = statistics.median(rate / base for rate, base in zip(of_turns, bare_rates, strict=True))
        rate = statistics.median(of_turns)
        text = f"{case.name}, {workers} worker(s) of {batched.num_envs}: {rate:,.0f} agent steps/s, {ratio:.1f} times"
        verdict = ""
        if workers == batched.workers:
            reached = ratio >= batched.bar or rate >= batched.enough
            verdict = f"; bar {batched.bar:g} times: {'reached' if reached else 'MISSED'}"
        print(f"{text} the {statistics.median(bare_rates):,.0f} of bare{verdict}", flush=True)


def profile(batched: Batched, num_envs: int | None) -> None:
    """Print one worker's time by function."""
    case, profiler = batched.case, cProfile.Profile(process_time)
    worker = case.worker(num_envs or batched.num_envs, batched=True)
    print(f"{agent_steps_per_s(worker, case.ticks, 2.0):,.0f} agent steps/s without the profiler")
    profiler.runcall(agent_steps_per_s, worker, case.ticks, 3.0)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the ratios of all environments, or of those named."""
    names = [batched.case.name for batched in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=names, nargs="+", default=names)
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="where a worker's time goes instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for batched in CASES:
        if batched.case.name not in options.env:
            continue
        if missing := batched.case.missing():
            print(f"{batched.case.name}: not measured: {missing}", flush=True)
        elif options.profile:
            profile(batched, options.num_envs)
        else:
            report(batched, options.num_envs, options.repeats)


if __name__ == "__main__":
    main()
