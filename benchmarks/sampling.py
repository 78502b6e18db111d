"""Measure sampling only: agent steps per second of two workers on two cores, relative to bare stepping on one core.

The rows of both policies are made and sent, and never opened, as in training. Bare stepping alternates the two
actions.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.setting import bare_per_s, experiment, set_up
from benchmarks.together import sample

TARGET = 0.80


async def measure(env_steps_per_round: int, num_envs: int, repeats: int = 8) -> tuple[float, float]:
    """Medians of agent steps per second: all workers, and bare, in turns."""
    with set_up(experiment(env_steps_per_round, num_envs)) as (_, parts):
        await sample(parts, 3)
        workers, bare = [], []
        for _ in range(repeats):
            bare.append(bare_per_s(1.5).agent_steps)
            began = time.perf_counter()
            _, rounds = await sample(parts, max(3, 60_000 // env_steps_per_round))
            steps = sum(receipt.agent_steps for one in rounds for receipt in one.receipts)
            workers.append(steps / (time.perf_counter() - began))
    return statistics.median(workers), statistics.median(bare)


def report() -> None:
    """Measure and print."""
    for env_steps, num_envs in ((8_192, 128), (2_048, 64)):
        workers, bare = asyncio.run(measure(env_steps, num_envs))
        print(
            f"sampling only, rounds of {env_steps:,} env steps, {num_envs} environments: {workers:,.0f} agent steps/s, "
            f"{workers / bare:.3f} of bare ({bare:,.0f}); target {TARGET}",
            flush=True,
        )


if __name__ == "__main__":
    report()
