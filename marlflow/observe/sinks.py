"""Reports as lines of `metrics.jsonl`, as a table of these, and as numbers by env steps for other sinks."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from marlflow.base.errors import InvalidInput
from marlflow.observe.callback import Callback, RunEnd
from marlflow.observe.report import Report, RunInfo


class AppendedFile:
    """Appends whole pieces; one that the disk refuses waits in memory and is written before the next.

    `written` counts pieces.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that closing the file does not repeat a failed write.
        self._file = path.open("ab", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)
        self._waiting: list[bytes] = []
        self.written = 0

    def append(self, piece: bytes) -> None:
        """Write a piece; raises OSError if it has to wait."""
        # Queued before writing, so that a failed write keeps it.
        self._waiting.append(piece)
        self._write()

    def _write(self) -> None:
        data = memoryview(b"".join(self._waiting))
        size = len(data)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            # Pipes and devices cannot be truncated.
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += size
        self.written += len(self._waiting)
        self._waiting.clear()

    def sync(self) -> None:
        """Write all pieces and fsync; raises OSError if that fails."""
        self._write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; raises OSError if waiting pieces cannot be written. May be called twice."""
        if self._file.closed:
            return
        try:
            self._write()
        finally:
            self._file.close()


METRICS = "metrics.jsonl"
"""Name of the reports file in a run's folder."""


class JsonlSink(Callback):
    """Writes one JSON object per line and report to `path`; NaN and infinities become null.

    If a run is resumed, it removes the reports after the checkpoint from the file, and lists them in `dropped`. Raises
    OSError while the disk refuses a report, which is then written before the next one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: AppendedFile | None = None
        self._lines_before, self.dropped = 0, list[str]()

    @property
    def lines(self) -> int:
        """Number of reports in the file."""
        return self._lines_before + (0 if self._file is None else self._file.written)

    def began(self, info: RunInfo) -> None:
        """Open the file; raises OSError."""
        if info.resumed is not None and self._path.exists():
            self._lines_before, self.dropped = _keep_first_reports(self._path, info.resumed.reports)
        self._file = AppendedFile(self._path)

    def reported(self, record: Report) -> None:
        """Append one line; raises TypeError for a value that is no number, text, list or mapping."""
        if self._file is not None:
            self._file.append(as_line(record, "record"))

    def sync(self) -> None:
        """Flush all reports to disk; raises OSError if that fails."""
        if self._file is not None:
            self._file.sync()

    def ended(self, result: RunEnd) -> None:
        """Write waiting reports; raises OSError if some are lost."""
        if self._file is not None:
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the reports in a `metrics.jsonl`, oldest first, without a last line that a crash cut off.

    Raises InvalidInput if the file is missing or another line is no report.
    """
    if not path.exists():
        raise InvalidInput([f"{path} does not exist; expected the metrics.jsonl of a run, which log.jsonl=true writes"])
    # Text after the last newline is empty, or a line that a crash cut off.
    *lines, _cut_off = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            begins = line[:40].decode(errors="replace")
            raise InvalidInput([f"{path}, line {number}: expected one JSON object, got {begins!r}"])
        records.append(record)
    return records


def _keep_first_reports(path: Path, count: int) -> tuple[int, list[str]]:
    """Truncate the file to its first `count` reports; return how many there are, and the reports removed."""
    lines = path.read_bytes().splitlines(keepends=True)
    # A crash may have cut off the last line.
    whole = [line for line in lines if line.endswith(b"\n")]
    # Truncated in place, because a full disk has no room for a copy.
    os.truncate(path, sum(map(len, whole[:count])))
    return len(whole[:count]), [line.decode(errors="replace").rstrip() for line in whole[count:]]


def as_line(value: Any, what: str) -> bytes:
    """Return a value as a line of JSON, with null for NaN and infinities; raises TypeError for what has no JSON."""
    return f"{json.dumps(_plain(value, what), allow_nan=False)}\n".encode()


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


def scalars_by_step(record: Report) -> dict[int, dict[str, float]]:
    """Return a report's numbers by path, grouped by the env steps at which they were measured, in rising order."""
    evaluated_at = {
        f"policies/{name}/eval_": int(metrics["eval_env_steps"])
        for name, metrics in record["policies"].items()
        if metrics["eval_env_steps"] is not None
    }
    of_team = max(evaluated_at.values(), default=0)
    evaluated_at |= dict.fromkeys(("run/eval_", *(f"learners/{name}/eval_" for name in record["learners"])), of_team)
    by_step: dict[int, dict[str, float]] = {}
    for tag, value in scalars(record):
        steps = (at for start, at in evaluated_at.items() if tag.startswith(start))
        by_step.setdefault(next(steps, int(record["env_steps"])), {})[tag] = value
    return dict(sorted(by_step.items()))


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


def settings(configuration: Any, path: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield each value of a configuration with its path, such as `policies.prey.algorithm.epochs`; null left out."""
    items: Any = ()
    if isinstance(configuration, Mapping):
        items = configuration.items()
    elif isinstance(configuration, list | tuple):
        items = enumerate(configuration)
    elif configuration is not None:
        yield path, configuration if isinstance(configuration, bool | int | float) else str(configuration)
    for key, value in items:
        yield from settings(value, f"{path}.{key}" if path else str(key))


def rows(metrics_path: Path) -> list[dict[str, Any]]:
    """Read a `metrics.jsonl` as flat dicts, with keys such as `policies.prey.return_mean`.

    Raises InvalidInput as `read_metrics`.
    """
    return [dict(_columns_of(report)) for report in read_metrics(metrics_path)]


def frame(metrics_path: Path) -> Any:
    """Read a `metrics.jsonl` as a pandas DataFrame; raises InvalidInput also if pandas is not installed."""
    records = rows(metrics_path)
    try:
        # pandas is no dependency of marlflow.
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise InvalidInput(
            [
                "frame() makes a pandas DataFrame, and pandas is not installed; pip install pandas, or read the same "
                f"reports from {metrics_path}, one JSON object in each line"
            ]
        ) from error
    return pandas.DataFrame(records)


def _columns_of(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _columns_of(item, f"{path}{key}.")
        else:
            yield f"{path}{key}", item
