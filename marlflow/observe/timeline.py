"""A timeline of a run: when stages, workers, evaluations and checkpoints took place, with queues, staleness and faults.

It is written at each report, in Chrome's trace event format, for https://ui.perfetto.dev
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from marlflow.flow import StageId, StageTimes
from marlflow.observe.callback import Callback, EvaluationEvent, FaultEvent, RunEnd
from marlflow.observe.report import Report, RunInfo
from marlflow.observe.trace_events import Arrows, PlacedSlice, Slice, TraceEvents, TraceFile, merged_slices


@dataclass(slots=True)
class ClockOffset:
    """Bounds, over all calls, of the seconds to add to another clock; (0, 0) if both clocks agree.

    Work lies between its call and its answer, so `low <= offset <= high`. The midpoint is used as in NTP (RFC 5905).
    """

    low: float = -math.inf
    high: float = math.inf

    def corrected(self, work: Span, sent_s: float, received_s: float) -> Span:
        """Return when work was done by this clock; without a bound on one side, the smallest correction.

        >>> ClockOffset().corrected((1.0, 2.0), 0.5, 2.5)
        (1.0, 2.0)
        >>> ClockOffset().corrected((101.0, 102.0), 0.5, 2.5)
        (1.0, 2.0)
        """
        low, high = sent_s - work[0], received_s - work[1]
        self.low, self.high = max(self.low, low), min(self.high, high)
        if self.low > self.high:
            # A clock was set, or its process was replaced.
            self.low, self.high = min(low, high), max(low, high)
        offset = min(max(0.0, self.low), self.high)
        if offset and math.isfinite(self.low) and math.isfinite(self.high):
            offset = (self.low + self.high) / 2
        return work[0] + offset, work[1] + offset


Span: TypeAlias = tuple[float, float]  # began and ended, in seconds


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


def busy_at_once(calls: Mapping[str, deque[Span]]) -> str:
    """Say how long each two learners were busy at once; and since when, if a deque is full and may have lost some.

    >>> busy_at_once({"a": deque([(0.0, 2.0), (3.0, 5.0)]), "b": deque([(1.0, 4.0)])})
    'learners a and b were busy at once for 2.0 of 3.0 s'
    >>> busy_at_once({"a": deque([(2.0, 3.0), (3.0, 5.0)], maxlen=2), "b": deque([(0.0, 1.0), (4.0, 6.0)])})
    'learners a and b were busy at once for 1.0 of 2.0 s in the last 4 s'
    """
    since_s = max((spans[0][0] for spans in calls.values() if spans and len(spans) == spans.maxlen), default=None)
    kept = {name: [span for span in spans if since_s is None or span[0] >= since_s] for name, spans in calls.items()}
    until_s = max((spans[-1][1] for spans in calls.values() if spans), default=0.0)
    when = "" if since_s is None else f" in the last {until_s - since_s:.0f} s"
    return "; ".join(
        f"learners {first} and {second} were busy at once for {overlap_s(kept[first], kept[second]):.1f} of "
        f"{min(busy_s(kept[first]), busy_s(kept[second])):.1f} s{when}"
        for first, second in combinations(kept, 2)
    )


DRIVER: Final = "driver"
# A piece is written early if this many slices wait.
_MOST_WAITING = 50_000
# Each piece may have this share of the events that are left for the file, so that it stays below some 20 MB.
_MOST_EVENTS, _SHARE_OF_PIECE, _FEWEST_PER_TRACK = 2_000_000, 0.01, 20


class WorkerSpan(NamedTuple):
    """One collect of a rollout worker, by its own clock (seconds since the epoch), and how its time was spent."""

    worker: int
    began_s: float
    env_s: float
    policy_s: float
    bookkeeping_s: float
    env_steps: int
    agent_steps: int


class Timeline(Callback):
    """Writes the timeline to `path`; also the executor's hook, and a callback of the run."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now_s = now_s
        self._collecting, self._publishing = frozenset[str](), frozenset[str]()
        self._queued: Callable[[], Mapping[str, int]] = dict
        self._file: TraceFile | None = None
        self._events = TraceEvents(now_s())
        self._slices: dict[tuple[str, str], list[Slice]] = defaultdict(list)
        self._num_waiting = 0
        self._called_s: dict[str, float] = {}
        self._collect_called_s = float("-inf")
        self._clocks: dict[str, ClockOffset] = defaultdict(ClockOffset)
        self._arrows = Arrows.none()

    def follow(
        self, collecting: Collection[str], publishing: Collection[str], queued: Callable[[], Mapping[str, int]]
    ) -> None:
        """Draw arrows from the stages that collect rounds to the stages that publish weights, each as `plan/stage`.

        `queued` returns the number of items at each stage.
        """
        self._collecting, self._publishing = frozenset(collecting), frozenset(publishing)
        self._queued = queued

    # -- what happens ---------------------------------------------------------------------------------------------

    def before(self, stage: StageId, items: int) -> None:
        """Note when a stage was called."""
        now_s = self._called_s[str(stage)] = self._now_s()
        if str(stage) in self._collecting:
            self._collect_called_s = now_s

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        """Add a stage's call."""
        if times.ended_s > times.began_s:
            now_s, name = self._now_s(), str(stage)
            span = (times.began_s, times.ended_s)
            # Stages on workers ran before they are called here, and several at once: their times are sums.
            called_s = self._called_s.get(name, float("-inf"))
            if times.ended_s - times.began_s <= now_s - called_s:
                span = self._clocks[name].corrected(span, called_s, now_s)
            self._add(f"plan {stage.plan}", stage.stage, span, {"items": items, "rows": times.rows})

    def collected(self, collects: Sequence[WorkerSpan], in_rounds: bool) -> None:
        """Add the collects of a round; `in_rounds`: all workers were called at the start of the round."""
        now_s = self._now_s()
        for worker, began_s, env_s, policy_s, bookkeeping_s, env_steps, agent_steps in collects:
            name = f"rollout worker {worker}"
            span = (began_s, began_s + env_s + policy_s + bookkeeping_s)
            sent_s = self._collect_called_s if in_rounds else float("-inf")
            parts = {"environment": env_s, "policy": policy_s, "bookkeeping": bookkeeping_s}
            counts = {"env_steps": env_steps, "agent_steps": agent_steps}
            self._add(name, "collect", self._clocks[name].corrected(span, sent_s, now_s), counts, parts)
        for stage, items in self._queued().items():
            self._events.count(f"items at {stage}", now_s, items)

    def saved_checkpoint(self, span: Span, env_steps: int) -> None:
        """Add a checkpoint, also one that failed."""
        self._add(DRIVER, "checkpoint", span, {"at_env_steps": env_steps})

    def _add(
        self,
        process: str,
        thread: str,
        span: Span,
        counts: Mapping[str, int],
        parts: Mapping[str, float] | None = None,
    ) -> None:
        self._slices[process, thread].append(Slice(*span, 1, counts, parts or {}))
        self._num_waiting += 1
        if self._num_waiting >= _MOST_WAITING:
            self._write()

    # -- callbacks ------------------------------------------------------------------------------------------------

    def began(self, info: RunInfo) -> None:
        """Open the file, of a resumed run at its end; raises OSError."""
        self._file = TraceFile(self._path, info.resumed is not None)
        self._events.continue_from(self._file.earlier)
        self._file.earlier.clear()  # may be millions
        at = "the start" if info.resumed is None else f"{info.resumed.env_steps} env steps"
        self._events.mark(f"run from {at}", self._now_s(), {"name": info.name, "id": info.id})

    def reported(self, record: Report) -> None:
        """Add counters, and write a piece; raises OSError."""
        now_s = self._now_s()
        for name, learner in record["learners"].items():
            if (staleness := learner["staleness_mean"]) is not None:
                self._events.count(f"staleness of {name} (versions)", now_s, staleness)
            self._events.count(f"updates of {name}", now_s, learner["updates"])
        self._events.count("env steps per second", now_s, record["env_steps_per_s"])
        if (size := record["object_store"]["bytes"]) is not None:
            self._events.count("object store (bytes)", now_s, size)
        self._write()

    def evaluated(self, evaluation: EvaluationEvent) -> None:
        span = evaluation.began_s, evaluation.ended_s
        self._add(DRIVER, "evaluation", span, {"at_env_steps": evaluation.env_steps})

    def fault(self, fault: FaultEvent) -> None:
        self._events.mark(fault.kind, self._now_s(), {"where": fault.where, "reason": fault.reason})

    def ended(self, result: RunEnd) -> None:
        """Write the rest and close the file; raises OSError."""
        if self._file is not None:
            why = {"stopped_by": result.stopped_by, "error": result.error or ""}
            self._events.mark("end of the run", self._now_s(), why)
            try:
                self._write()
            finally:
                self._file.close(self._events.end(self._now_s()))
                self._file = None

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._file is None:
            return
        left = max(0, _MOST_EVENTS - self._events.num_made)
        most = max(_FEWEST_PER_TRACK, int(left * _SHARE_OF_PIECE) // max(1, len(self._slices)))
        collects, publishes = list[PlacedSlice](), dict[str, list[PlacedSlice]]()
        for (process, thread), slices in sorted(self._slices.items()):
            placed = self._events.add_slices(process, thread, merged_slices(slices, most))
            stage = f"{process.removeprefix('plan ')}/{thread}"
            collects += placed if stage in self._collecting else ()
            if stage in self._publishing:
                publishes[stage] = placed
        for source, target in self._arrows.between(collects, publishes):
            self._events.arrow(source, target)
        self._slices.clear()
        self._num_waiting = 0
        self._file.append(self._events.take())
