"""Measure whether the memory of a long run grows: of the driver, of each actor, and of the object store.

    python -m benchmarks.endurance --minutes 30

Samples PPO and DQN, which learn over Ray with checkpoints, every few seconds. The exit code is 1 if any memory has
grown by more than `--bound-mib` since the run was warm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import linear_regression, median

import psutil

from benchmarks.setting import MAPPING
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
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
from marlflow.driver.train import train
from marlflow.env.games.cartpole_team import parallel_env
from marlflow.observe.sinks import read_metrics

MIB = 2**20
EVERY_S = 3.0
WARM_AFTER, AT_MOST_S = 1 / 3, 300.0
"""A run is warm after this share of its time, or so many seconds: its replay is full then, its libraries are loaded."""
OBJECT_STORE = "object store"
ACTORS = ("ray::RolloutActor", "ray::Host")
EXPERIMENT = Experiment(
    env=Env(parallel_env, num_envs=16),
    policies={"ppo": Policy(PPO(batch_agent_steps=2_000)), "dqn": Policy(DQN(replay_agent_steps=20_000))},
    mapping=MAPPING,
    rollouts=Rollouts(num_workers=2, fragment_env_steps=512),
    runtime=RuntimeConfig("ray"),
    evaluation=Evaluation(every_env_steps=50_000, episodes=4),
    checkpoint=CheckpointConfig(every_env_steps=20_000),
    log=Log(every_env_steps=5_000, console="none"),
)


@dataclass(frozen=True)
class Growth:
    """Growth of one measurement since the run was warm: bytes in its first and last fifth (medians), bytes per hour."""

    first: float
    last: float
    slope: float


class Watch:
    """Samples all processes of a run every few seconds; `seen` has seconds and bytes by kind of process."""

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[float, float]]] = {}
        self._began_s = time.perf_counter()
        self._over = threading.Event()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Sample in a thread until the context ends."""
        thread = threading.Thread(target=self._look_on)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def note(self, what: str, at_s: float, size: float) -> None:
        """Add one sample."""
        self.seen.setdefault(what, []).append((at_s, size))

    def _look_on(self) -> None:
        driver = psutil.Process()
        while not self._over.wait(EVERY_S):
            at_s = time.perf_counter() - self._began_s
            self.note("driver", at_s, _own_bytes(driver))
            for process in driver.children(recursive=True):
                try:
                    title = " ".join(process.cmdline())
                    if title.startswith(ACTORS):
                        kind = title.split()[0].removeprefix("ray::").split(".")[0]
                        self.note(f"{kind} {process.pid}", at_s, _own_bytes(process))
                except psutil.Error:  # it has just ended
                    continue


def _own_bytes(process: psutil.Process) -> float:
    """Return resident memory without shared pages: the object store is counted once, by itself."""
    memory = process.memory_info()
    return float(memory.rss - memory.shared)


def growth(points: Sequence[tuple[float, float]], warm_s: float) -> Growth | None:
    """Return the growth of one measurement; None if there are too few samples since the run was warm."""
    warm = [(at_s, size) for at_s, size in points if at_s >= warm_s]
    fifth = len(warm) // 5
    if not fifth:
        return None
    sizes = [size for _, size in warm]
    slope = linear_regression([at_s for at_s, _ in warm], sizes).slope
    return Growth(median(sizes[:fifth]), median(sizes[-fifth:]), slope * 3600)


def report(minutes: float = 30.0, bound_mib: float = 16.0) -> list[str]:
    """Train and print; return what has grown by more than the bound."""
    setting, watch = replace(EXPERIMENT, stop=Stop(time_s=60 * minutes)), Watch()
    with tempfile.TemporaryDirectory() as folder:
        with watch.looking():
            result = train(setting, folder)
        for record in read_metrics(Path(folder) / "metrics.jsonl"):
            watch.note(OBJECT_STORE, record["time_s"], record["object_store"]["bytes"] or 0)
    metrics, warm_s = result.metrics, min(60 * minutes * WARM_AFTER, AT_MOST_S)
    print(f"{minutes:g} minutes, {metrics['env_steps']:,} env steps; MiB since {warm_s:.0f} s", flush=True)
    too_much = [f"{kind} {count}" for kind, count in metrics["faults"].items() if count]
    for what, points in watch.seen.items():
        if (found := growth(points, warm_s)) is None:
            too_much.append(f"{what} was seen {len(points)} times only")
            continue
        print(f"  {what:24} {found.first / MIB:8.1f} to {found.last / MIB:8.1f}, {found.slope / MIB:+8.1f} an hour")
        if found.last - found.first > bound_mib * MIB:
            too_much.append(f"{what} has grown by {(found.last - found.first) / MIB:.1f} MiB")
    print(f"  beyond {bound_mib:g} MiB: {'; '.join(too_much) or 'nothing'}", flush=True)
    return too_much


def main(words: Sequence[str] | None = None) -> None:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--bound-mib", type=float, default=16.0)
    asked = parser.parse_args(words)
    sys.exit(1 if report(asked.minutes, asked.bound_mib) else 0)


if __name__ == "__main__":
    main()
