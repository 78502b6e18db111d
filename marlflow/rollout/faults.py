"""Episodes that an environment broke: counted, and beyond a budget the end."""

from __future__ import annotations

from collections import Counter

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
        self._unreported: Counter[str] = Counter()

    def tolerate(self, failure: EnvironmentFailed) -> None:
        """Raises `failure` if the budget is used up, with the count of those that no `take` has given."""
        self.seen += 1
        self._unreported[failure.kind] += 1
        if self.seen > self._tolerated:
            failure.unreported = dict(self._unreported)
            raise failure

    def add(self, failure: EnvironmentFailed, reason: str, rows_lost: int) -> None:
        """An episode was given up; `reason` is that of `failure`, or says more."""
        self._new.append(Fault(failure.kind, failure.where, reason, failure.user_traceback, rows_lost))

    def report(self, fault: Fault) -> None:
        """Adds a fault that costs no episode."""
        self._new.append(fault)

    def take(self) -> tuple[Fault, ...]:
        """Those since the last call."""
        taken = tuple(self._new)
        self._new.clear()
        self._unreported.clear()
        return taken
