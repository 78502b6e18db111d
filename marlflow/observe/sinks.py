"""The sink protocol for reports, and sinks that write files."""

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
from marlflow.observe.report import Report

METRICS = "metrics.jsonl"
"""Name of the reports file in a run's folder."""


class Sink(Protocol):
    """Takes reports in the order of their env steps until closed."""

    def report(self, record: Report) -> None:
        """Write one report; if that fails now, raises OSError and writes it before the next one."""

    def close(self) -> None:
        """Write waiting reports and release resources; raises OSError if some are lost. May be called twice."""


class JsonlSink:
    """Writes one JSON object per line and report; NaN and infinities become null.

    A resumed run passes the number of reports at its checkpoint; later ones are removed, and listed in `dropped`.
    """

    def __init__(self, path: Path, reports_before: int | None = None) -> None:
        self._lines_before, self.dropped = 0, list[str]()
        if reports_before is not None and path.exists():
            self._lines_before, self.dropped = _keep_first_reports(path, reports_before)
        self._file = AppendedFile(path)

    @property
    def lines(self) -> int:
        """Number of reports in the file."""
        return self._lines_before + self._file.written

    def report(self, record: Report) -> None:
        """Append one line; raises TypeError for a value that is no number, text, list or mapping."""
        self._file.append(_line(record).encode())

    def sync(self) -> None:
        """Flush all reports to disk; raises OSError if that fails."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the reports in a `metrics.jsonl`, oldest first, without a last line that a crash cut off.

    Raises InvalidInput if the file is missing or another line is no report.
    """
    if not path.exists():
        raise InvalidInput([f"{path} does not exist; expected the metrics.jsonl of a run, which log.jsonl=true writes"])
    # Text after the last newline is empty, or a line that a crash cut off.
    *lines, _cut_off = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InvalidInput([f"{path}, line {number}: expected one JSON object, got {line[:40]!r}"]) from error
    return records


def _keep_first_reports(path: Path, count: int) -> tuple[int, list[str]]:
    """Truncate the file to its first `count` reports; return how many there are, and the reports removed."""
    lines = path.read_bytes().splitlines(keepends=True)
    # A crash may have cut off the last line.
    whole = [line for line in lines if line.endswith(b"\n")]
    # Truncated in place, because a full disk has no room for a copy.
    os.truncate(path, sum(map(len, whole[:count])))
    return len(whole[:count]), [line.decode(errors="replace").rstrip() for line in whole[count:]]


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_plain(record, "record"), allow_nan=False) + "\n"


def _plain(value: Any, where: str) -> Any:
    """Convert to JSON types; numpy and torch values by `tolist`."""
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
    """Writes all numbers as TensorBoard scalars over env steps.

    A resumed run passes its checkpoint's env steps, so that TensorBoard hides later points.
    """

    def __init__(self, directory: Path, resumed_at_env_steps: int | None = None) -> None:
        self._directory = directory
        self._resumed_at = resumed_at_env_steps
        self._file: AppendedFile | None = None

    def report(self, record: Report) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        opening = self._opening() if self._file is None else b""
        if self._file is None:
            # TensorBoard's own writer is not used: a full disk ends its thread with a traceback.
            stamp = f"{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
            self._file = AppendedFile(self._directory / f"events.out.tfevents.{stamp}")
        events = [
            _event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in values]))
            for step, values in sorted(_by_step(record).items())
        ]
        self._file.append(opening + b"".join(events))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opening(self) -> bytes:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        version = _event(file_version="brain.Event:2")
        if self._resumed_at is None:
            return version
        return version + _event(step=self._resumed_at + 1, session_log=SessionLog(status=SessionLog.START))


_NUMBERS = itertools.count()


def _event(**fields: Any) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    written = io.BytesIO()
    RecordWriter(written).write(Event(wall_time=time.time(), **fields).SerializeToString())
    return written.getvalue()


def _by_step(record: Report) -> dict[int, list[tuple[str, float]]]:
    """Group a report's scalars by the env steps at which they were measured."""
    evaluated_at = {
        f"policies/{name}/eval_": int(metrics["eval_env_steps"])
        for name, metrics in record["policies"].items()
        if metrics["eval_env_steps"] is not None
    }
    of_team = max(evaluated_at.values(), default=0)
    evaluated_at |= dict.fromkeys(("run/eval_", *(f"learners/{name}/eval_" for name in record["learners"])), of_team)
    by_step: dict[int, list[tuple[str, float]]] = {}
    for tag, value in scalars(record):
        steps = (at for start, at in evaluated_at.items() if tag.startswith(start))
        by_step.setdefault(next(steps, int(record["env_steps"])), []).append((tag, value))
    return by_step


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each number in a report with its path; top-level ones are under `run/`."""
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
