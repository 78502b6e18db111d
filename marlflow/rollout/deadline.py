"""When collecting and evaluating have to end, whatever is under way."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time `at_s`, by time.perf_counter of this process: nothing new is begun after it.

    A step or reset of an environment that is running then is given up once it has taken `grace_s` seconds, and all are
    `grace_s` seconds after it. Pickled, it is the seconds that are left, since clocks of machines differ.
    """

    at_s: float
    grace_s: float

    @staticmethod
    def after(left_s: float, grace_s: float) -> Deadline:
        """The deadline `left_s` seconds from now."""
        return Deadline(perf_counter() + left_s, grace_s)

    @property
    def has_passed(self) -> bool:
        """Whether it is over."""
        return perf_counter() >= self.at_s

    def gives_up(self, began_s: float, now_s: float) -> bool:
        """Whether a call of an environment that began at `began_s` is to be given up now."""
        return now_s >= self.at_s and now_s >= min(began_s, self.at_s) + self.grace_s

    def __reduce__(self) -> Any:
        return Deadline.after, (self.at_s - perf_counter(), self.grace_s)
