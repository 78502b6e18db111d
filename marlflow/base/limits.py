"""Limits that end work which is under way, at a time that may be set while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol


class Limit(Protocol):
    """Ends running and later work between two steps of it: minibatches of an update, env steps of a round."""

    def has_passed(self) -> bool:
        """Return whether the work ends now; asked before each step, so it must be fast."""
        ...


@dataclass(slots=True)
class ClockLimit:
    """Passes at `at_s`, in seconds of time.perf_counter; by default never."""

    at_s: float = math.inf

    def has_passed(self) -> bool:
        return perf_counter() >= self.at_s
