"""Busy intervals of stages: their overlap, and a timeline.

The timeline is in Chrome's trace event format, for https://ui.perfetto.dev
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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

    def write(self, path: Path) -> None:
        """Write the timeline as JSON for Perfetto: a process per plan, a track per stage."""
        path.write_text(json.dumps({"traceEvents": chrome_events(self._intervals), "displayTimeUnit": "ms"}))


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


def tracks(spans: Sequence[Span]) -> list[int]:
    """Assign each span a track so that spans on a track never overlap, with as few tracks as possible.

    >>> tracks([(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)])
    [0, 1, 0]
    """
    result, free, running = [0] * len(spans), list[int](), list[tuple[float, int]]()
    num_tracks = 0
    for place in sorted(range(len(spans)), key=lambda index: spans[index]):
        began, ended = spans[place]
        # Heaps give the track that becomes free first, and the lowest free track.
        while running and running[0][0] <= began:
            heapq.heappush(free, heapq.heappop(running)[1])
        if not free:
            heapq.heappush(free, num_tracks)
            num_tracks += 1
        result[place] = heapq.heappop(free)
        heapq.heappush(running, (ended, result[place]))
    return result


def chrome_events(intervals: Iterable[Interval]) -> list[dict[str, Any]]:
    """Make trace events: a process per plan, a thread per stage and overlapping call, microseconds from the first."""
    by_stage: dict[tuple[str, str], list[Span]] = {}
    for plan, stage, began, ended in intervals:
        by_stage.setdefault((plan, stage), []).append((began, ended))
    # Clocks start anywhere, so times count from the first interval.
    origin = min((began for spans in by_stage.values() for began, _ in spans), default=0.0)
    processes = {plan: number for number, plan in enumerate(dict.fromkeys(plan for plan, _ in by_stage), 1)}
    events = [_name("process_name", process, 0, plan) for plan, process in processes.items()]
    threads = 1
    for (plan, stage), spans in by_stage.items():
        places = tracks(spans)
        for track in range(max(places) + 1):
            events.append(_name("thread_name", processes[plan], threads + track, stage))
        for (began, ended), track in zip(spans, places, strict=True):
            where = {"pid": processes[plan], "tid": threads + track}
            when = {"ts": (began - origin) * 1e6, "dur": (ended - began) * 1e6}
            events.append({"ph": "X", "name": stage, "cat": plan, **where, **when})
        threads += max(places) + 1
    return events


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
