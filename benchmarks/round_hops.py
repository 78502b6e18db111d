"""Where the time of a small round goes: each hop between driver, workers and learners, and CPU time by process.

    python -m benchmarks.round_hops [--rounds 200] [--repeats 5] [--threads]

The setting is that of `benchmarks.together`: PPO and DQN on four cart-poles, rounds of 200 env steps, two workers. The
theoretical best is sampling alone plus the slower learner alone. Hops are medians over rounds of the whole plan. CPU
time is of all threads of a process, for one round; `waited` is the time in which its threads were ready to run and had
no core, so it tells load of other programs (and of our own processes) from time that a round needs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray._private import worker as ray_worker

from benchmarks import traced_actors
from benchmarks.setting import experiment, set_up
from benchmarks.together import SMALL_NUM_ENVS, Alone, sample, together
from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.ray import handles, remote_worker
from marlflow.runtime.ray.places import RayPlace
from marlflow.runtime.ray.remote_worker import RemoteWorker

Times = list[tuple[float, ...]]


class Hops:
    """The driver's side of the hops: when calls are made and when their answers are read."""

    def __init__(self) -> None:
        self.collects: dict[int, Times] = defaultdict(list)
        self.chains: dict[str, Times] = defaultdict(list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record calls of workers and learners."""
        collect, call_chain = RemoteWorker.collect, RayPlace._call_chain
        record = RemoteWorker.record_progress
        began: dict[int, tuple[float, float]] = {}

        def traced_collect(worker: Any, *arguments: Any) -> Any:
            start = time.perf_counter()
            refs = collect(worker, *arguments)
            began[worker.number] = (start, time.perf_counter())
            return refs

        def traced_record(worker: Any, receipt: Any) -> None:
            self.collects[worker.number].append((*began[worker.number], time.perf_counter()))
            record(worker, receipt)

        async def traced_chain(place: Any, chain: int, items: Any, returns: int) -> Any:
            start = time.perf_counter()
            result = await call_chain(place, chain, items, returns)
            self.chains[place.name].append((start, time.perf_counter()))
            return result

        with (
            patch.object(RemoteWorker, "collect", traced_collect),
            patch.object(RemoteWorker, "record_progress", traced_record),
            patch.object(RayPlace, "_call_chain", traced_chain),
            patch.object(remote_worker, "RolloutActor", traced_actors.TracedWorker),
            patch.object(handles, "Host", traced_actors.TracedHost),
        ):
            yield

    def clear(self) -> None:
        """Forget all."""
        self.collects.clear()
        self.chains.clear()


def cpu_of(process: int) -> dict[str, tuple[float, float]]:
    """Return (CPU seconds, seconds ready without a core) by name of thread."""
    spent: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            ran, waited, _ = map(int, (task / "schedstat").read_text().split())
            name = (task / "comm").read_text().strip()
            before = spent[name]
            spent[name] = (before[0] + ran / 1e9, before[1] + waited / 1e9)
    return spent


def processes_of(parts: RunComponents) -> dict[str, Any]:
    """Return the actors by name."""
    workers: Any = parts.workers
    actors = {f"worker {worker.number}": worker.actor for worker in workers.all}
    return actors | {name: handle.actor for name, handle in parts.learners.items()}  # type: ignore[attr-defined]


def taken(actors: dict[str, Any]) -> dict[str, tuple[int, Times]]:
    """Return each actor's process and its calls since the last time."""
    return dict(zip(actors, ray.get([actor.taken.remote() for actor in actors.values()]), strict=True))


class Phases:
    """Wall and CPU time of phases by process, for one round."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self.walls: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))

    async def run(self, name: str, rounds: int, phase: Callable[[], Awaitable[Any]]) -> Any:
        """Run a phase of `rounds` rounds, and record it."""
        before = {process: cpu_of(pid) for process, pid in self._pids.items()}
        began = time.perf_counter()
        result = await phase()
        self.walls[name].append((time.perf_counter() - began) / rounds)
        for process, pid in self._pids.items():
            for thread, (ran, waited) in cpu_of(pid).items():
                ran_before, waited_before = before[process].get(thread, (0.0, 0.0))
                self.cpu[name][process, thread].append(((ran - ran_before) / rounds, (waited - waited_before) / rounds))
        return result

    def report(self, threads: bool) -> None:
        """Print medians over repeats, in microseconds for a round."""
        for name, walls in self.walls.items():
            print(f"{name}: {statistics.median(walls) * 1e6:8,.0f} us a round (least {min(walls) * 1e6:,.0f})")
            for process in self._pids:
                of_threads = {t: v for (p, t), v in self.cpu[name].items() if p == process}
                medians = {
                    t: tuple(statistics.median(column) * 1e6 for column in zip(*v, strict=True))
                    for t, v in of_threads.items()
                }
                ran, waited = (sum(each[i] for each in medians.values()) for i in (0, 1))
                print(f"    {process:10} {ran:8,.0f} us of CPU, waited {waited:8,.0f}")
                for t, (r, w) in sorted(medians.items(), key=lambda item: -item[1][0]) if threads else ():
                    if r > 20:
                        print(f"        {t:20} {r:8,.0f} {w:8,.0f}")


def _median(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered) * 1e6:8,.0f} us (tenth of rounds {ordered[len(ordered) // 10] * 1e6:,.0f})"


def report_hops(hops: Hops, calls: dict[str, tuple[int, Times]]) -> None:
    """Print the hops of the whole plan."""
    for number, driver in hops.collects.items():
        actor = calls[f"worker {number}"][1]
        pairs = list(zip(driver, actor, strict=True))
        print(f"worker {number}: {len(pairs)} collects")
        print("    submit                      ", _median([sent - start for (start, sent, _), _ in pairs]))
        print("    submitted to begun          ", _median([begun - sent for (_, sent, _), (begun, _, _) in pairs]))
        print("    collect, wall               ", _median([end - begun for _, (begun, end, _) in pairs]))
        print("    collect, CPU of its thread  ", _median([cpu for _, (_, _, cpu) in pairs]))
        print("    ended to receipts read      ", _median([read - end for (_, _, read), (_, end, _) in pairs]))
    for name, driver in hops.chains.items():
        actor = calls[name.removeprefix("learner ")][1]
        pairs = list(zip(driver, actor, strict=True))
        print(f"{name}: {len(pairs)} calls")
        print("    sent to begun               ", _median([begun - start for (start, _), (begun, _, _) in pairs]))
        print("    run, wall                   ", _median([end - begun for _, (begun, end, _) in pairs]))
        print("    run, CPU of its thread      ", _median([cpu for _, (_, _, cpu) in pairs]))
        print("    ended to answer read        ", _median([read - end for (_, read), (_, end, _) in pairs]))
    reads = [max(times) for times in zip(*([t[2] for t in each] for each in hops.collects.values()), strict=True)]
    starts = [min(times) for times in zip(*([t[0] for t in each] for each in hops.collects.values()), strict=True)]
    ppo = hops.chains["learner ppo"]
    if len(ppo) == len(reads):
        print("receipts read to PPO called    ", _median([c - r for r, (c, _) in zip(reads, ppo, strict=True)]))
        print("PPO's answer to next collect   ", _median([s - r for s, (_, r) in zip(starts[1:], ppo, strict=False)]))
    print("round                          ", _median([b - a for a, b in pairwise(starts)]))


async def measure(setting: Any, made: Any, parts: RunComponents, hops: Hops, rounds: int, repeats: int) -> Phases:
    """Run all phases in turns, and keep the hops of the last whole plan."""
    actors = processes_of(parts)
    node: Any = ray_worker._global_node
    pids = {"driver": "self", **{name: pid for name, (pid, _) in taken(actors).items()}}
    pids["raylet"] = node.all_processes["raylet"][0].process.pid
    pids["gcs"] = node.all_processes["gcs_server"][0].process.pid
    alone, phases = Alone(made, parts), Phases(pids)
    await sample(parts, 3)
    for _ in range(repeats):
        _, ready = await phases.run("sampling", rounds, lambda: sample(parts, rounds))
        await phases.run("ppo", rounds, lambda ready=ready: alone.ppo(ready))
        await phases.run("dqn", rounds, lambda ready=ready: alone.dqn(ready))
        hops.clear()
        taken(actors)
        await phases.run("together", rounds, lambda: together(setting, made, parts, rounds))
    report_hops(hops, taken(actors))
    return phases


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", action="store_true", help="CPU time by thread too")
    options = parser.parse_args(arguments)
    hops, setting = Hops(), experiment(200, SMALL_NUM_ENVS)
    with hops.recording(), set_up(setting) as (made, parts):
        phases = asyncio.run(measure(setting, made, parts, hops, options.rounds, options.repeats))
    phases.report(options.threads)
    best = [a + max(b, c) for a, b, c in zip(*(phases.walls[k] for k in ("sampling", "ppo", "dqn")), strict=True)]
    shares = [b / t for b, t in zip(best, phases.walls["together"], strict=True)]
    print(f"share of the theoretical best: {statistics.median(shares):.3f} ({', '.join(f'{s:.3f}' for s in shares)})")


if __name__ == "__main__":
    main()
