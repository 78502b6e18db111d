"""Where reports go: the protocol, and the sinks that write files."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from marlflow.base.errors import InvalidInput
from marlflow.observe.record import MetricsRecord


class Sink(Protocol):
    """What takes reports, in the order of their env steps, until it is closed."""

    def report(self, record: MetricsRecord) -> None:
        """Take one report."""

    def close(self) -> None:
        """Write out what is pending and let go of everything; a second call does nothing."""


class JsonlSink:
    """One JSON object per report and line, on disk as soon as `report` returns.

    Values that JSON cannot say (NaN, infinities) become null. A resumed run says how many reports there were at its
    checkpoint: those after, which the run is about to make again, are taken out of the file first.
    """

    def __init__(self, path: Path, reports_before: int | None = None) -> None:
        if reports_before is not None and path.exists():
            _drop_reports_after(path, reports_before)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def report(self, record: MetricsRecord) -> None:
        """Append one line. Raises TypeError on a value that is no number, text, list or mapping, naming its key."""
        self._file.write(_line(record))
        self._file.flush()

    def sync(self) -> None:
        """Return once what was reported so far is on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The reports in a `metrics.jsonl`, oldest first; a last line that was cut off by a crash is left out.

    Raises InvalidInput if there is no such file or another line is not a report.
    """
    if not path.exists():
        raise InvalidInput([f"{path} does not exist; expected the metrics.jsonl of a run"])
    *lines, _cut_off = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InvalidInput([f"{path}, line {number}: expected one JSON object, got {line[:40]!r}"]) from error
    return records


def _drop_reports_after(path: Path, count: int) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines[:count] if line.endswith("\n")]  # the last may have been cut off by a crash
    aside = path.with_name(path.name + ".partial")
    aside.write_text("".join(kept), encoding="utf-8")
    os.replace(aside, path)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_plain(record, "record"), allow_nan=False) + "\n"


def _plain(value: Any, where: str) -> Any:
    """`value` in JSON's own types; arrays and scalars of numpy and torch by their `tolist`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), where)
    raise TypeError(
        f"{where} of a metrics report: expected a number, text, list or mapping, got {type(value).__name__}"
    )


class TensorBoardSink:
    """Every number of a report as a TensorBoard scalar over env steps: `policies/<id>/...`, `stages/<plan/stage>/...`.

    Totals of the run are under `run/`. TensorBoard is imported and its file made at the first report. A resumed run
    passes the env steps of its checkpoint, so that TensorBoard hides what came after it in the earlier file.
    """

    def __init__(self, directory: Path, resumed_at_env_steps: int | None = None) -> None:
        self._directory = directory
        self._resumed_at = resumed_at_env_steps
        self._writer: Any = None

    def report(self, record: MetricsRecord) -> None:
        """Write one event that holds all scalars, and flush it."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            self._open()
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
        self._write(step=int(record["env_steps"]), summary=Summary(value=values))
        self._writer.flush()

    def close(self) -> None:
        """Close the event file, if there is one."""
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(self._directory))
        if self._resumed_at is not None:
            self._write(step=self._resumed_at + 1, session_log=SessionLog(status=SessionLog.START))

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), **fields))


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each number in a record with its path; what stands at the top is under `run/`; None and text are left out."""
    for key, value in record.items():
        yield from _leaves(key if isinstance(value, Mapping) else f"run/{key}", value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}/{key}", item)
    elif isinstance(value, int | float):
        yield path, float(value)
    elif hasattr(value, "item") and getattr(value, "size", 0) == 1:
        yield path, float(value.item())
