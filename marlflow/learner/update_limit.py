"""When an update has to end before its last minibatch: at the end of the run's time, or after a signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

_AGREE_EVERY_S = 0.5
_MOST_MINIBATCHES = 1000


class UpdateLimit(Protocol):
    """Ends running and later updates between two minibatches."""

    def has_passed(self) -> bool:
        """Return whether updates end now; asked before each minibatch."""
        ...


@dataclass(slots=True)
class ClockLimit:
    """Ends updates from `at_s` on, in seconds of time.perf_counter; by default never."""

    at_s: float = math.inf

    def has_passed(self) -> bool:
        return perf_counter() >= self.at_s


class AgreedLimit:
    """Ends the updates of a group of processes before the same minibatch, as soon as one of them has to end.

    `sum_over_group` replaces numbers by their sums over all processes. It is called about twice a second, not at every
    minibatch: from the sums, all processes compute alike how many minibatches to take until the next call.
    """

    def __init__(self, sum_over_group: Callable[[list[float]], list[float]], world_size: int) -> None:
        self._sum, self._world_size = sum_over_group, world_size
        self._interval = self._left = 0
        self._agreed_at_s = perf_counter()

    def has_passed(self, limit: UpdateLimit) -> bool:
        """Return whether all processes end the update now; collective, called before each minibatch."""
        if self._left:
            self._left -= 1
            return False
        now_s = perf_counter()
        passed, seconds = self._sum([float(limit.has_passed()), now_s - self._agreed_at_s])
        self._agreed_at_s = now_s
        # The time in which the group waited for rows counts too: it makes the interval shorter, never longer.
        per_s = (self._interval + 1) * self._world_size / max(seconds, 1e-9)
        self._interval = min(int(per_s * _AGREE_EVERY_S), 2 * self._interval + 1, _MOST_MINIBATCHES)
        # After a limit that has passed, the next update asks at once: the limit may have been moved.
        self._left = 0 if passed else self._interval
        return passed > 0
