"""Episodes that an environment broke: counted, and beyond a budget the end."""

from __future__ import annotations

from dataclasses import replace

from marlflow.base.errors import EnvironmentFailed
from marlflow.rollout.fragment import Fault


class Broken(Exception):
    """The environment of copy `index` (in its worker) did what it must not; `failure` says what."""

    def __init__(self, index: int, failure: EnvironmentFailed) -> None:
        super().__init__(index, failure)
        self.index, self.failure = index, failure


class FaultLog:
    """A worker's faults. It goes on after `tolerated` episodes that an environment broke; there were `seen` so far."""

    def __init__(self, tolerated: int = 0) -> None:
        self._tolerated = tolerated
        self.seen = 0
        self._new: list[Fault] = []
        self._broke: list[EnvironmentFailed] = []  # since the last `take`

    def tolerate(self, failure: EnvironmentFailed) -> None:
        """Raises `failure` if the budget is used up, with the earlier failures that no receipt has reported."""
        self.seen += 1
        if self.seen > self._tolerated:
            failure.earlier = tuple(self._broke)
            raise failure
        self._broke.append(failure)

    def add(self, failure: EnvironmentFailed, reason: str, rows_lost: int) -> None:
        """An episode was given up; `reason` is that of `failure`, or says more."""
        self._new.append(replace(fault_of(failure), reason=reason, rows_lost=rows_lost))

    def report(self, fault: Fault) -> None:
        """Adds a fault that costs no episode."""
        self._new.append(fault)

    def take(self) -> tuple[Fault, ...]:
        """Those since the last call."""
        taken = tuple(self._new)
        self._new.clear()
        self._broke.clear()
        return taken


def fault_of(failure: EnvironmentFailed) -> Fault:
    """The fault that an episode's end by `failure` is; how many rows it cost is not known here."""
    return Fault(failure.kind, failure.where, failure.reason, failure.user_traceback, 0)
