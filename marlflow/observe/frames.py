"""The reports of a run as a table: one row for each, one column for each key."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marlflow.base.errors import InvalidInput
from marlflow.observe.sinks import read_metrics


def rows(metrics_path: Path) -> list[dict[str, Any]]:
    """The reports of a `metrics.jsonl`, each with its keys by their path, such as `policies.prey.return_mean`.

    Raises InvalidInput if there is no such file, or a line of it is not a report.
    """
    return [dict(_leaves(report)) for report in read_metrics(metrics_path)]


def frame(metrics_path: Path) -> Any:
    """The same as a pandas DataFrame. Raises InvalidInput as well if pandas is not installed."""
    found = rows(metrics_path)
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise InvalidInput(
            [
                "frame() makes a pandas DataFrame, and pandas is not installed; pip install pandas, or read the same "
                f"reports from {metrics_path}, one JSON object in each line"
            ]
        ) from error
    return pandas.DataFrame(found)


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{path}{key}.")
        else:
            yield f"{path}{key}", item
