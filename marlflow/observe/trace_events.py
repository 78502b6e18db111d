"""A timeline's file, and its events in Chrome's trace event format: slices on tracks, counters, marks and arrows.

The file is a gzipped JSON array, which grows by whole pieces. Each piece is a gzip member of its own, so a killed run
leaves an array without its end, which Perfetto, Chrome and `read_trace` read. Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import bisect
import gzip
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from marlflow.observe.sinks import AppendedFile

TRACE = "trace.json.gz"
"""Name of the timeline in a run's folder."""

TraceEvent: TypeAlias = Mapping[str, Any]
_GZIP = 16 + zlib.MAX_WBITS


class TraceFile:
    """Appends events to `path`; `earlier` are the events that an earlier process wrote to it.

    Raises OSError while the disk refuses a piece, which is then written before the next one.
    """

    def __init__(self, path: Path, continues: bool = False) -> None:
        self.earlier: list[dict[str, Any]] = []
        if continues and path.exists():
            self.earlier = _reopen(path)
        else:
            path.unlink(missing_ok=True)
        self._file = AppendedFile(path)
        self._is_empty = not self.earlier

    def append(self, events: Iterable[TraceEvent]) -> None:
        """Write events as one piece."""
        text = "".join(f"{json.dumps(event, separators=(',', ':'))},\n" for event in events)
        if text:
            start, self._is_empty = "[\n" if self._is_empty else "", False
            self._file.append(gzip.compress((start + text).encode(), compresslevel=6, mtime=0))

    def close(self, last: TraceEvent) -> None:
        """Write the last event and the end of the array, and close the file."""
        try:
            start = "[\n" if self._is_empty else ""
            end = f"{start}{json.dumps(last, separators=(',', ':'))}\n]\n"
            self._file.append(gzip.compress(end.encode(), compresslevel=6, mtime=0))
        finally:
            self._file.close()


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Read the events of a timeline, also of a run that was killed or still runs."""
    return _events("".join(text for text, _ in _pieces(path.read_bytes())))


def _events(text: str) -> list[dict[str, Any]]:
    body = text.rstrip().removesuffix("]").rstrip().removesuffix(",")
    events: list[dict[str, Any]] = json.loads(f"{body}]") if body else []
    return events


def _pieces(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield the text of each whole gzip member, and where it ends in the file."""
    start = 0
    while start < len(data):
        member = zlib.decompressobj(_GZIP)
        try:
            text = member.decompress(memoryview(data)[start:])
        except zlib.error:
            return
        if not member.eof:
            return
        start = len(data) - len(member.unused_data)
        yield text.decode(), start


def _reopen(path: Path) -> list[dict[str, Any]]:
    """Remove the end of the array, and a piece that a crash cut off; return the events before."""
    texts, end = list[str](), 0
    for text, stop in _pieces(path.read_bytes()):
        if text.endswith("\n]\n"):
            break
        texts.append(text)
        end = stop
    os.truncate(path, end)
    return _events("".join(texts))


_ORIGIN: Final = "marlflow_origin"
_RUN: Final = (0, 0)
"""Process and thread of marks that belong to the whole run."""


class Slice(NamedTuple):
    """Work from `began_s` to `ended_s` (seconds since the epoch): `calls` calls, their `counts`, and seconds by part.

    The `parts` follow each other, whatever their order was, and their sum is the duration.
    """

    began_s: float
    ended_s: float
    calls: int
    counts: Mapping[str, int]
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PlacedSlice:
    """A slice on its track, in nanoseconds since the timeline's origin."""

    process: int
    thread: int
    began_ns: int
    ended_ns: int


def merged_slices(slices: Sequence[Slice], most: int) -> list[Slice]:
    """Return at most `most` slices with the same sums; neighbors are merged, each group beginning at its first.

    >>> merged_slices([Slice(0.0, 1.0, 1, {"rows": 2}, {}), Slice(5.0, 7.0, 1, {"rows": 3}, {})], 1)
    [Slice(began_s=0.0, ended_s=3.0, calls=2, counts={'rows': 5}, parts={})]
    """
    size = -(-len(slices) // most)
    if size <= 1:
        return list(slices)
    ordered = sorted(slices, key=lambda each: each.began_s)
    return [_merged(ordered[first : first + size]) for first in range(0, len(ordered), size)]


def _merged(group: Sequence[Slice]) -> Slice:
    busy_s = sum(each.ended_s - each.began_s for each in group)
    counts, parts = Counter[str](), defaultdict[str, float](float)
    for each in group:
        counts.update(each.counts)
        for name, seconds in each.parts.items():
            parts[name] += seconds
    began_s = group[0].began_s
    return Slice(began_s, began_s + busy_s, sum(each.calls for each in group), dict(counts), dict(parts))


class TraceEvents:
    """Makes events, with times from `origin_s` on; `num_made` counts them. `take` hands them out."""

    def __init__(self, origin_s: float) -> None:
        self._origin_s = origin_s
        self._waiting: list[TraceEvent] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str, int], int] = {}
        self._ended_ns: dict[int, int] = {}
        self._counted: dict[str, float] = {}
        self._num_arrows = 0
        self.num_made = 0

    def continue_from(self, earlier: Sequence[Mapping[str, Any]]) -> None:
        """Continue with the origin, names and numbers of a file's events, or begin an empty file."""
        for event in earlier:
            if event["ph"] == "M":
                self._take_up(event)
            elif event["ph"] == "s":
                self._num_arrows = max(self._num_arrows, event["id"])
            elif event["ph"] == "C":
                self._counted[event["name"]] = event["args"]["value"]
        self.num_made = len(earlier)
        if not earlier:
            self._add({"ph": "M", "name": _ORIGIN, "pid": 0, "tid": 0, "args": {"seconds": self._origin_s}})
            self._add({"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "run"}})

    def _take_up(self, event: Mapping[str, Any]) -> None:
        args = event["args"]
        if event["name"] == _ORIGIN:
            self._origin_s = args["seconds"]
        elif event["name"] == "process_name" and event["pid"]:
            self._processes[args["name"]] = event["pid"]
        elif event["name"] == "thread_name":
            self._threads[event["pid"], args["name"], args["track"]] = event["tid"]

    def add_slices(self, process: str, thread: str, slices: Iterable[Slice]) -> list[PlacedSlice]:
        """Add slices of a thread, overlapping ones on several tracks; return them in order of their beginning."""
        pid, placed = self._process(process), []
        for each in sorted(slices, key=lambda one: one.began_s):
            began, ended = self._ns(each.began_s), self._ns(each.ended_s)
            tid = self._free_track(pid, thread, began, ended)
            args = {"calls": each.calls, **each.counts} if each.calls > 1 else {**each.counts}
            self._add_slice(thread, process, tid, began, ended, args)
            start_s = each.began_s
            for name, seconds in each.parts.items():
                # Rounded from the same sums, so that parts neither overlap nor exceed their slice.
                stop_s = start_s + seconds
                self._add_slice(name, process, tid, min(ended, self._ns(start_s)), min(ended, self._ns(stop_s)), {})
                start_s = stop_s
            placed.append(PlacedSlice(pid, tid, began, ended))
        return placed

    def _add_slice(self, name: str, process: str, tid: int, began: int, ended: int, args: Mapping[str, Any]) -> None:
        where = {"pid": self._processes[process], "tid": tid, "ts": began / 1e3, "dur": (ended - began) / 1e3}
        self._add({"ph": "X", "name": name, "cat": process, **where, **({"args": args} if args else {})})

    def arrow(self, source: PlacedSlice, target: PlacedSlice) -> None:
        """Add an arrow from the end of a slice to the beginning of another."""
        self._num_arrows += 1
        arrow = {"name": "rows", "cat": "rows", "id": self._num_arrows}
        at = {"pid": source.process, "tid": source.thread, "ts": max(source.began_ns, source.ended_ns - 1) / 1e3}
        self._add({"ph": "s", **arrow, **at})
        to = {"pid": target.process, "tid": target.thread, "ts": target.began_ns / 1e3}
        self._add({"ph": "f", "bp": "e", **arrow, **to})

    def count(self, name: str, at_s: float, value: float) -> None:
        """Add a counter's value, if it has changed; it begins at 0."""
        if self._counted.get(name, 0) != value:
            self._counted[name] = value
            self._add({"ph": "C", "name": name, "pid": 0, "ts": self._ns(at_s) / 1e3, "args": {"value": value}})

    def mark(self, name: str, at_s: float, args: Mapping[str, Any]) -> None:
        """Add an instant of the whole run."""
        self._add(self._mark(name, at_s, args))

    def end(self, at_s: float) -> TraceEvent:
        """Return an event to close a file with."""
        return self._mark("closed", at_s, {})

    def _mark(self, name: str, at_s: float, args: Mapping[str, Any]) -> TraceEvent:
        pid, tid = _RUN
        return {"ph": "i", "s": "g", "name": name, "pid": pid, "tid": tid, "ts": self._ns(at_s) / 1e3, "args": args}

    def take(self) -> list[TraceEvent]:
        """Return the events since the last call."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def _add(self, event: TraceEvent) -> None:
        self._waiting.append(event)
        self.num_made += 1

    def _ns(self, at_s: float) -> int:
        return max(0, round((at_s - self._origin_s) * 1e9))

    def _process(self, name: str) -> int:
        if name not in self._processes:
            pid = self._processes[name] = len(self._processes) + 1
            self._add({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
            self._add({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        return self._processes[name]

    def _free_track(self, pid: int, thread: str, began: int, ended: int) -> int:
        """Return the first track of a thread on which nothing lies from `began` on; it is taken until `ended`."""
        track = 0
        while True:
            tid = self._threads.get((pid, thread, track))
            if tid is None:
                tid = self._threads[pid, thread, track] = len(self._threads) + 1
                args = {"name": thread, "track": track}
                self._add({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args})
            if self._ended_ns.get(tid, 0) <= began:
                self._ended_ns[tid] = ended
                return tid
            track += 1


@dataclass(slots=True)
class Arrows:
    """Joins each collect to the first call of each publishing stage after it and before the next collect."""

    _collects: list[PlacedSlice]
    _joined: dict[str, PlacedSlice]

    @classmethod
    def none(cls) -> Arrows:
        """Return the state before the first collect."""
        return cls([], {})

    def between(
        self, collects: Sequence[PlacedSlice], publishes: Mapping[str, Sequence[PlacedSlice]]
    ) -> Iterable[tuple[PlacedSlice, PlacedSlice]]:
        """Yield the arrows of the next piece of a timeline; `publishes` are by stage."""
        known = sorted([*self._collects, *collects], key=lambda each: each.ended_ns)
        ends = [each.ended_ns for each in known]
        for stage, calls in publishes.items():
            for call in calls:
                before = bisect.bisect_right(ends, call.began_ns) - 1
                if before >= 0 and self._joined.get(stage) is not known[before] and call.ended_ns > call.began_ns:
                    self._joined[stage] = known[before]
                    yield known[before], call
        # The next piece may have the first call after the last collect.
        self._collects = known[-1:]
