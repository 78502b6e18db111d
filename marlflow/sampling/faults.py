"""Episodes ended by environment faults, counted against a budget."""

from __future__ import annotations

from marlflow.base.errors import EnvironmentFailed
from marlflow.sampling.receipts import Fault


class FaultLog:
    """A worker's faults; more than `tolerated` broken episodes raise."""

    def __init__(self, tolerated: int = 0) -> None:
        self._tolerated = tolerated
        self.seen = 0
        self._new: list[Fault] = []
        # Since the last `take`.
        self._broke: list[EnvironmentFailed] = []

    def tolerate(self, failure: EnvironmentFailed) -> None:
        """Count a failure; over budget, raise it with the earlier ones since `take`."""
        self.seen += 1
        if self.seen > self._tolerated:
            failure.earlier = tuple(self._broke)
            raise failure
        self._broke.append(failure)

    def report(self, fault: Fault) -> None:
        """Add a fault."""
        self._new.append(fault)

    def take(self) -> tuple[Fault, ...]:
        """Return the faults since the last call."""
        taken = tuple(self._new)
        self._new.clear()
        self._broke.clear()
        return taken


def fault_of(failure: EnvironmentFailed, rows_lost: int = 0) -> Fault:
    """Convert a failure to a fault."""
    return Fault(failure.kind, failure.where, failure.reason, failure.user_traceback, rows_lost)
