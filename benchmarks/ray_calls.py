"""Measure Ray's own cost on the driver for a call of a rollout worker: to submit it, and to await its receipt.

Four actors answer at once, so that only the driver's CPU time counts; all of its threads are included. A round of 1,000
calls is made, as of 1,000 workers. The calls have the arguments and the return values of a collect.

python -m benchmarks.ray_calls
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from marlflow.batches.items import Weights
from marlflow.sampling.protocol import Request
from marlflow.sampling.receipts import EpisodeResult, PolicyReceipt, Receipt

ACTORS, CALLS = 4, 1_000
_ROWS = np.zeros(64_000, np.float32)
"""Rows of a fragment: above the 100 kB to which Ray sends results to the driver itself."""


class Trivial:
    """An actor that answers at once, as a rollout worker would."""

    def __init__(self, policies: int) -> None:
        names = [f"policy_{number}" for number in range(policies)]
        mapping = {f"agent_{number}": name for number, name in enumerate(names)}
        episodes = tuple(
            EpisodeResult(number, 1, 20, dict.fromkeys(mapping, 1.0), number, mapping) for number in range(10)
        )
        rows = {name: PolicyReceipt(100, 0, 0.0, 1) for name in names}
        self._receipt = Receipt(0, 400, 100 * policies, episodes, rows, 0, 0.5, 0.3, 0.2)
        self._rows = [ray.put(_ROWS) for _ in names]

    def collect(self, packed: bytes, own: Any, *flats: Any) -> tuple[Any, ...]:
        """Return a pickled receipt, and a value for each policy."""
        del packed, own, flats
        # A reference instead of rows: small, so that the time of copying rows does not count.
        return pickle.dumps(self._receipt, pickle.HIGHEST_PROTOCOL), *self._rows

    def weights(self) -> Any:
        """Return parameters of 10,000 numbers, as a learner publishes them."""
        return np.zeros(10_000, np.float32)


@dataclass(frozen=True)
class Cost:
    """Microseconds of the driver's CPU time for one call: of its thread to submit, to await, and of all threads."""

    submit_us: float
    answer_us: float
    all_threads_us: float


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _round(methods: Sequence[Any], packed: bytes, flats: Sequence[Any]) -> Cost:
    before_s, began_s = _cpu_s(), time.thread_time()
    refs = [methods[number % len(methods)].remote(packed, None, *flats) for number in range(CALLS)]
    sent_s = time.thread_time()
    answers = [pickle.loads(receipt) for receipt in await asyncio.gather(*[each[0] for each in refs])]  # noqa: S301
    done_s, after_s = time.thread_time(), _cpu_s()
    assert len(answers) == CALLS
    return Cost(*(seconds / CALLS * 1e6 for seconds in (sent_s - began_s, done_s - sent_s, after_s - before_s)))


def measure(policies: int, new_weights: bool, repeats: int = 5) -> Cost:
    """Return medians over rounds; with `new_weights`, parameters of each policy are sent."""
    actors = [ray.remote(Trivial).options(num_cpus=0).remote(policies) for _ in range(ACTORS)]
    methods = [actor.collect.options(num_returns=1 + policies) for actor in actors]
    flats = [actors[number % ACTORS].weights.remote() for number in range(policies)] if new_weights else []
    names = [f"policy_{number}" for number in range(policies)]
    weights = {name: Weights(1, None) for name in names} if new_weights else {}
    packed = pickle.dumps(Request(0, weights, {name: {"epsilon": 0.1, "num_envs": 16} for name in names}))

    async def rounds() -> list[Cost]:
        return [await _round(methods, packed, flats) for _ in range(repeats + 1)]

    costs = asyncio.run(rounds())[1:]
    for actor in actors:
        ray.kill(actor)
    return Cost(*(statistics.median(column) for column in zip(*(vars(cost).values() for cost in costs), strict=True)))


def report() -> None:
    """Measure and print."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        for policies in (1, 2, 8, 32):
            for new_weights in (False, True):
                cost = measure(policies, new_weights)
                sent = "new weights of each" if new_weights else "no new weights"
                print(
                    f"{policies:2} policies, {sent:19}: a call takes {cost.submit_us:6.1f} us to submit and "
                    f"{cost.answer_us:6.1f} us to await, with all of Ray's threads {cost.all_threads_us:6.1f} us; "
                    f"1,000 calls a second: {cost.all_threads_us / 1e3:.2f} of a core",
                    flush=True,
                )
    finally:
        ray.shutdown()


if __name__ == "__main__":
    report()
