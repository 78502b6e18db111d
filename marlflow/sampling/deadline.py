"""The time limit of collects and evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class Deadline:
    """The deadline `at_s`, by time.perf_counter: no episode or step starts after it.

    A running environment call is interrupted at the latest `grace_period_s` seconds after the deadline.
    Pickling keeps the remaining seconds, since clocks differ.
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
        """Return whether an environment call begun at `began_s` is to be interrupted."""
        return now_s >= self.at_s and now_s >= min(began_s, self.at_s) + self.grace_period_s

    def __reduce__(self) -> Any:
        return Deadline.after, (self.at_s - perf_counter(), self.grace_period_s)
