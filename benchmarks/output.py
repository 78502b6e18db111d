"""Measure the cost of forwarding an environment's output, of one that prints a line at every step, over Ray.

Three workers take turns on one machine, a round each: one whose environment makes the line and does not print it, one
that prints into Ray's log only, and one whose lines are also forwarded to the driver. Ratios are of consecutive rounds,
so other load on the machine affects both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray

from marlflow.checks.validation import ready
from marlflow.config.experiment import Env, Evaluation, Experiment, Log, Policy, Rollouts, RuntimeConfig
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runtime.ray import RayRuntime
from marlflow.sampling.messages import News
from marlflow.sampling.protocol import Request

TARGET = 1.05
_ENV_STEPS = 4_000


class Silent(CartPoleTeam):
    """Makes a line at every env step, and does not print it."""

    line = ""

    def step(self, actions: dict[str, int]) -> Any:
        self.line = f"env step {self._cycles}: {actions}"
        return super().step(actions)


class Printing(Silent):
    """Prints the line."""

    def step(self, actions: dict[str, int]) -> Any:
        stepped = super().step(actions)
        print(self.line)
        return stepped


def _experiment(factory: Callable[..., Any]) -> Experiment:
    return Experiment(
        env=Env(factory, num_envs=16),
        policies={"cart": Policy()},
        rollouts=Rollouts(num_workers=1, fragment_env_steps=_ENV_STEPS),
        runtime=RuntimeConfig("ray"),
        evaluation=Evaluation(episodes=0),
        log=Log(console="none", jsonl=False, tensorboard=False),
    )


async def _took_s(workers: Any, number: int) -> float:
    """Return the seconds of one round."""
    began_s = time.perf_counter()
    await workers.collect(Request(number, {}, {}))
    return time.perf_counter() - began_s


async def _rounds(variants: Sequence[Any], repeats: int) -> list[list[float]]:
    """Return the seconds of each round of each variant, in turns, without the first of each."""
    for workers in variants:
        await _took_s(workers, 0)
    return [[await _took_s(workers, number) for workers in variants] for number in range(1, repeats + 1)]


def measure(repeats: int = 60) -> tuple[float, float, int]:
    """Return medians: a round with forwarding relative to printing only and to silence; and the number of lines."""
    shown: list[News] = []
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    runtimes = [RayRuntime() for _ in range(3)]
    try:
        cases = [(Silent, None), (Printing, None), (Printing, shown.append)]
        starts = [
            partial(runtime.start, ready(_experiment(factory)).spec, on_news=on_news)
            for runtime, (factory, on_news) in zip(runtimes, cases, strict=True)
        ]
        rounds = asyncio.run(_rounds([start().workers for start in starts], repeats))
    finally:
        for runtime in runtimes:
            runtime.close()
        ray.shutdown()
    passing = statistics.median(passed / printed for _, printed, passed in rounds)
    printing = statistics.median(passed / silent for silent, _, passed in rounds)
    return passing, printing, len(shown)


def report() -> None:
    """Measure and print."""
    passing, printing, shown = measure()
    print(
        f"an environment that prints at every step, {_ENV_STEPS:,} env steps a round: passing lines on costs "
        f"{passing - 1:+.1%} of a round (at most {TARGET - 1:.0%}); beside a silent environment {printing - 1:+.1%}; "
        f"{shown} lines came to the driver",
        flush=True,
    )


if __name__ == "__main__":
    report()
