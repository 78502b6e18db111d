"""Busy intervals of stages, and their overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Span: TypeAlias = tuple[float, float]  # began and ended, in seconds


class Interval(NamedTuple):
    """One call of a stage, in seconds of one clock."""

    plan: str
    stage: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds during which both stages were busy, and each one."""

    both_s: float
    first_busy_s: float
    second_busy_s: float


class Trace:
    """The last `capacity` intervals of all stages (about 150 bytes each); `dropped` counts older ones."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._intervals: deque[Interval] = deque(maxlen=capacity)
        self.dropped = 0

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The stored intervals."""
        return tuple(self._intervals)

    def add(self, plan: str, stage: str, began_s: float, ended_s: float) -> None:
        """Store one interval, replacing the oldest if full."""
        if ended_s < began_s:
            raise ValueError(f"stage {stage!r} of plan {plan!r}: ended at {ended_s} s, before it began at {began_s} s")
        self.dropped += len(self._intervals) == self._intervals.maxlen
        self._intervals.append(Interval(plan, stage, began_s, ended_s))

    def spans(self, plan: str, stage: str) -> list[Span]:
        """Return a stage's busy times, in order of addition."""
        return [
            (began, ended)
            for its_plan, its_stage, began, ended in self._intervals
            if (its_plan, its_stage) == (plan, stage)
        ]

    def overlap_s(self, first: tuple[str, str], second: tuple[str, str]) -> Overlap:
        """Return how long two stages, each (plan, stage), were busy at once, and each one."""
        a, b = self.spans(*first), self.spans(*second)
        return Overlap(overlap_s(a, b), busy_s(a), busy_s(b))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the same covered time as sorted, disjoint spans without empty ones.

    >>> merged([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0), (3.0, 3.5)])
    [(0.0, 3.5), (4.0, 5.0)]
    """
    result: list[Span] = []
    for began, ended in sorted(spans):
        if began == ended:
            continue
        if result and began <= result[-1][1]:
            result[-1] = (result[-1][0], max(ended, result[-1][1]))
        else:
            result.append((began, ended))
    return result


def busy_s(spans: Iterable[Span]) -> float:
    """Return seconds covered by at least one span."""
    return sum(ended - began for began, ended in merged(spans))


def overlap_s(first: Iterable[Span], second: Iterable[Span]) -> float:
    """Return seconds covered by both.

    >>> overlap_s([(0.0, 2.0), (3.0, 4.0)], [(1.0, 3.5)])
    1.5
    """
    a, b = merged(first), merged(second)
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        # Advance the span that ends first: the other may overlap the next one too.
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return total
