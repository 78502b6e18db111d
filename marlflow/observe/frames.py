"""Reads a run's reports as a table: one row per report, one column per key."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marlflow.base.errors import InvalidInput
from marlflow.observe.sinks import read_metrics


def rows(metrics_path: Path) -> list[dict[str, Any]]:
    """Read a `metrics.jsonl` as flat dicts, with keys such as `policies.prey.return_mean`.

    Raises InvalidInput as `read_metrics`.
    """
    return [dict(_leaves(report)) for report in read_metrics(metrics_path)]


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


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{path}{key}.")
        else:
            yield f"{path}{key}", item
