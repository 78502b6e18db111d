"""Where reports go: the protocol, and the sinks that write files."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from marlflow.base.errors import InvalidInput
from marlflow.observe.appended import AppendedFile
from marlflow.observe.record import MetricsRecord

METRICS = "metrics.jsonl"
"""The file of reports in a run's folder."""


class Sink(Protocol):
    """What takes reports, in the order of their env steps, until it is closed."""

    def report(self, record: MetricsRecord) -> None:
        """Take one report. Raises OSError if it cannot be written now: it waits, and is written before the next one."""

    def close(self) -> None:
        """Write out what waits and let go of everything; a second call does nothing. Raises OSError if it is lost."""


class JsonlSink:
    """One JSON object per report and line, on disk as soon as `report` returns.

    Values that JSON cannot say (NaN, infinities) become null. A resumed run says how many reports there were at its
    checkpoint: those after, which the run is about to make again, are taken out of the file first, and are `dropped`.
    """

    def __init__(self, path: Path, reports_before: int | None = None) -> None:
        self._lines_before, self.dropped = 0, list[str]()
        if reports_before is not None and path.exists():
            self._lines_before, self.dropped = _keep_first_reports(path, reports_before)
        self._file = AppendedFile(path)

    @property
    def lines(self) -> int:
        """How many reports the file has."""
        return self._lines_before + self._file.written

    def report(self, record: MetricsRecord) -> None:
        """Append one line. Raises TypeError on a value that is no number, text, list or mapping, naming its key."""
        self._file.append(_line(record).encode())

    def sync(self) -> None:
        """Return once what was reported so far is on disk; raises OSError if it cannot be."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The reports in a `metrics.jsonl`, oldest first; a last line that was cut off by a crash is left out.

    Raises InvalidInput if there is no such file or another line is not a report.
    """
    if not path.exists():
        raise InvalidInput([f"{path} does not exist; expected the metrics.jsonl of a run, which log.jsonl=true writes"])
    *lines, _cut_off = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InvalidInput([f"{path}, line {number}: expected one JSON object, got {line[:40]!r}"]) from error
    return records


def _keep_first_reports(path: Path, count: int) -> tuple[int, list[str]]:
    """Drops all reports after the first `count`; returns how many are left, and those that were dropped.

    Fewer are left if the file was deleted or cut short since there were so many.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]  # the last may have been cut off by a crash
    os.truncate(path, sum(map(len, whole[:count])))  # in place: the disk may be full
    return len(whole[:count]), [line.decode(errors="replace").rstrip() for line in whole[count:]]


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
    """Every number of a report as a TensorBoard scalar over env steps: `learners/<id>/...`, `stages/<plan/stage>/...`.

    Totals of the run are under `run/`. Evaluations stand at the env steps at which they were made. TensorBoard is
    imported and its file made at the first report. A resumed run passes the env steps of its checkpoint, so that
    TensorBoard hides what came after it in the earlier file. TensorBoard's own writer is not used: it writes in a
    thread, which a full disk ends with a traceback.
    """

    def __init__(self, directory: Path, resumed_at_env_steps: int | None = None) -> None:
        self._directory = directory
        self._resumed_at = resumed_at_env_steps
        self._file: AppendedFile | None = None

    def report(self, record: MetricsRecord) -> None:
        """Write one event that holds all scalars, and one for evaluations that were made before."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        opening = self._opening() if self._file is None else b""
        if self._file is None:
            stamp = f"{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
            self._file = AppendedFile(self._directory / f"events.out.tfevents.{stamp}")
        events = [
            _event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in values]))
            for step, values in sorted(_by_step(record).items())
        ]
        self._file.append(opening + b"".join(events))

    def close(self) -> None:
        """Close the event file, if there is one."""
        if self._file is not None:
            self._file.close()

    def _opening(self) -> bytes:
        """What an event file begins with."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        version = _event(file_version="brain.Event:2")
        if self._resumed_at is None:
            return version
        return version + _event(step=self._resumed_at + 1, session_log=SessionLog(status=SessionLog.START))


_NUMBERS = itertools.count()


def _event(**fields: Any) -> bytes:
    """An event as its file has it: with its length and checksums."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    written = io.BytesIO()
    RecordWriter(written).write(Event(wall_time=time.time(), **fields).SerializeToString())
    return written.getvalue()


def _by_step(record: MetricsRecord) -> dict[int, list[tuple[str, float]]]:
    """The scalars of a record, by the env steps that they belong to."""
    evaluated_at = {
        f"policies/{name}/eval_": int(metrics["eval_env_steps"])
        for name, metrics in record["policies"].items()
        if metrics["eval_env_steps"] is not None
    }
    of_team = max(evaluated_at.values(), default=0)
    found: dict[int, list[tuple[str, float]]] = {}
    for tag, value in scalars(record):
        steps = (at for start, at in {**evaluated_at, "run/eval_": of_team}.items() if tag.startswith(start))
        found.setdefault(next(steps, int(record["env_steps"])), []).append((tag, value))
    return found


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
