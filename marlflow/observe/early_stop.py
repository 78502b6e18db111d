"""A callback that ends a run when a metric no longer improves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marlflow.base.ranges import Amount, Count
from marlflow.observe.callback import Callback, StopRun
from marlflow.observe.report import Report, RunInfo, metric


@dataclass
class EarlyStop(Callback):
    """Ends the run once `metric` has not improved by more than `min_change` in `reports` reports in a row.

    `metric` is a path in a report, such as `policies.prey.eval_return_mean`; a path that no report has is refused
    before the run. Reports without a value do not count. A resumed run counts on.
    """

    metric: str  #: path in a report: policies.<id>.eval_return_mean
    reports: Count = 5  #: reports with a value of the metric, in a row, without an improvement
    min_change: Amount = 0.0  #: smallest change that is an improvement
    lower_is_better: bool = False  #: whether lower values are better

    def __post_init__(self) -> None:
        self._best: float | None = None
        self._without = 0

    def began(self, info: RunInfo) -> None:
        self._best, self._without = None, 0

    def reported(self, record: Report) -> StopRun | None:
        """Compare a report with the best; raises KeyError if it has no such metric."""
        if (value := metric(record, self.metric)) is None:
            return None
        change = 0.0 if self._best is None else float(value) - self._best
        if self._best is None or (-change if self.lower_is_better else change) > self.min_change:
            self._best, self._without = float(value), 0
            return None
        self._without += 1
        if self._without < self.reports:
            return None
        return StopRun(f"{self.metric} has not improved in {self._without} reports, the best is {self._best:g}")

    def state(self) -> Mapping[str, Any]:
        """Return the best value, and the number of reports without an improvement."""
        return {"best": self._best, "without": self._without}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._best, self._without = state["best"], int(state["without"])
