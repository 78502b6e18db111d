"""Plays matches in a process of its own, so that games between members of a league do not hold up sampling."""

from __future__ import annotations

from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.receipts import Evaluated, Fault
from marlflow.sampling.worker import RolloutWorker


def worker_name(number: int, num_workers: int) -> str:
    """Return the name of a worker's process; those from `num_workers` on are referees.

    >>> worker_name(1, num_workers=2), worker_name(2, num_workers=2)
    ('rollout worker 1', 'referee 0')
    """
    return f"rollout worker {number}" if number < num_workers else f"referee {number - num_workers}"


class Referee:
    """Plays evaluation episodes by `worker`, and samples nothing.

    Frozen entries are removed after each call, because the next matches mostly have others.
    """

    def __init__(self, worker: RolloutWorker) -> None:
        self._worker = worker

    def evaluate(self, request: EvaluationRequest) -> Evaluated:
        """Play evaluation episodes; see `Worker.evaluate`."""
        try:
            return self._worker.evaluate(request)
        finally:
            self._worker.remove_frozen(request.frozen)

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        """Close all environments, within `timeout_s` seconds if given; return faults."""
        return self._worker.close(timeout_s)
