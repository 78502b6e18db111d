"""Actors that record when their calls begin and end, for `benchmarks.round_hops`.

Times are of `time.perf_counter`, which is the same clock in all processes of a machine (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import os
import time
from typing import Any

from marlflow.runtime.ray.host import Host
from marlflow.runtime.ray.rollout_actor import RolloutActor


class _Traced:
    """Adds `taken`, which returns the process and the times of its calls since the last time."""

    _times: list[tuple[float, float, float]]

    def taken(self) -> tuple[int, list[tuple[float, float, float]]]:
        """Return the process and (begin, end, CPU seconds of the thread) of each call, and forget them."""
        times, self._times = self._times, []
        return os.getpid(), times


class TracedWorker(_Traced, RolloutActor):
    """A rollout worker's actor."""

    def __init__(self, *arguments: Any) -> None:
        self._times = []
        super().__init__(*arguments)

    def collect(self, *arguments: Any) -> Any:
        """Collect, and record when."""
        began, began_cpu = time.perf_counter(), time.thread_time()
        result = super().collect(*arguments)
        self._times.append((began, time.perf_counter(), time.thread_time() - began_cpu))
        return result


class TracedHost(_Traced, Host):
    """A learner's actor."""

    def __init__(self, *arguments: Any) -> None:
        self._times = []
        super().__init__(*arguments)

    def run(self, *arguments: Any) -> Any:
        """Run a chain, and record when."""
        began, began_cpu = time.perf_counter(), time.thread_time()
        result = super().run(*arguments)
        self._times.append((began, time.perf_counter(), time.thread_time() - began_cpu))
        return result
