"""A timeline's file: trace events as a gzipped JSON array, which grows by whole pieces.

Each piece is a gzip member of its own, so a killed run leaves an array without its end, which Perfetto, Chrome and
`read_trace` read. Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from marlflow.observe.appended import AppendedFile

TRACE = "trace.json.gz"
"""Name of the timeline in a run's folder."""

TraceEvent: TypeAlias = Mapping[str, Any]
_GZIP = 16 + zlib.MAX_WBITS


class TraceFile:
    """Appends events to `path`; `earlier` are those of a file that another process has left.

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
