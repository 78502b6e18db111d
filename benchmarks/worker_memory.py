"""Measure whether a worker's resident memory grows: every 100,000 of 2 million agent steps."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import psutil

from benchmarks.rollout_cases import Case
from marlflow.sampling import RolloutWorker

AGENT_STEPS = 2_000_000
_EVERY = 100_000
_MIB = 2**20
# malloc may keep some memory without a leak: a smaller slope counts as none.
_STEADY_BYTES_PER_STEP = 1.0


def report_memory(case: Case, agent_steps: int = AGENT_STEPS) -> None:
    """Measure and print; if it grows, also print which lines of Python hold more memory."""
    worker = case.worker()
    _collect(worker, case, _EVERY)
    resident = [_resident()]
    for _ in range(agent_steps // _EVERY):
        _collect(worker, case, _EVERY)
        resident.append(_resident())
    steps = np.arange(len(resident)) * _EVERY
    slope = float(np.polyfit(steps, resident, 1)[0])
    growth = "steady" if slope < _STEADY_BYTES_PER_STEP else "GROWS"
    print(
        f"{case.name}: resident memory over {agent_steps:,} agent steps: {growth}; first {resident[0] / _MIB:.1f} MiB, "
        f"last {resident[-1] / _MIB:.1f}, highest {max(resident) / _MIB:.1f}; slope {slope:+.3f} bytes an agent step",
        flush=True,
    )
    if growth != "steady":
        _report_holders(worker, case)
    worker.close()


def _collect(worker: RolloutWorker, case: Case, agent_steps: int) -> None:
    done = 0
    while done < agent_steps:
        receipt, _ = worker.collect(case.ticks)
        done += receipt.agent_steps


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _report_holders(worker: RolloutWorker, case: Case) -> None:
    tracemalloc.start(8)
    _collect(worker, case, _EVERY)
    before = tracemalloc.take_snapshot()
    _collect(worker, case, 2 * _EVERY)
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    for line in after.compare_to(before, "lineno")[:10]:
        print(f"  {line}")
