"""The time limit of collects and evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline in seconds of time.perf_counter: no episode or step starts after `at_s`.

    A running environment call is interrupted at most `grace_period_s` seconds later.
    """

    at_s: float
    grace_period_s: float

    @staticmethod
    def after(left_s: float, grace_period_s: float) -> Deadline:
        """Return the deadline in `left_s` seconds."""
        return Deadline(perf_counter() + left_s, grace_period_s)

    @property
    def has_passed(self) -> bool:
        """Whether the deadline has passed."""
        return perf_counter() >= self.at_s

    def interrupts(self, began_s: float, now_s: float) -> bool:
        """Return whether to interrupt an environment call begun at `began_s`."""
        return now_s >= self.at_s and now_s >= min(began_s, self.at_s) + self.grace_period_s

    def __reduce__(self) -> Any:
        # Pickled as the remaining seconds, because the clocks of processes differ.
        return Deadline.after, (self.at_s - perf_counter(), self.grace_period_s)
