"""A callback that ends a run when a metric no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marlflow.base.ranges import Amount, Count
from marlflow.observe.callback import Callback, StopRun
from marlflow.observe.report import Report, RunInfo, is_of_evaluation, metric


@dataclass
class EarlyStop(Callback):
    """Ends the run once `metric` has not improved by more than `min_change` in `reports` reports in a row.

    `metric` is a path in a report, such as `policies.prey.eval_return_mean`; a path that no report has is refused
    before the run. Reports without a value do not count; of two after the same env steps, the second one counts only if
    the metric is of evaluations. NaN is no improvement. A resumed run counts on.
    """

    metric: str  #: path in a report: policies.<id>.eval_return_mean
    reports: Count = 5  #: reports with a value of the metric, in a row, without an improvement
    min_change: Amount = 0.0  #: smallest change that is an improvement
    lower_is_better: bool = False  #: whether lower values are better

    def __post_init__(self) -> None:
        self._best: float | None = None
        self._without = self._counted = 0

    def began(self, info: RunInfo) -> None:
        self._best, self._without, self._counted = None, 0, 0

    def reported(self, record: Report) -> StopRun | None:
        """Compare a report with the best; raises KeyError if it has no such metric."""
        if (value := metric(record, self.metric)) is None:
            return None
        value = float(value)
        gain = math.inf if self._best is None else self._best - value if self.lower_is_better else value - self._best
        if not math.isnan(value) and gain > self.min_change:
            self._best, self._without, self._counted = value, 0, record["env_steps"]
            return None
        if record["env_steps"] == self._counted and not is_of_evaluation(self.metric):
            return None
        self._without, self._counted = self._without + 1, record["env_steps"]
        if self._without < self.reports:
            return None
        best = "it is not a number" if self._best is None else f"the best is {self._best:g}"
        return StopRun(f"{self.metric} has not improved in {self._without} reports, {best}")

    def state(self) -> Mapping[str, Any]:
        """Return the best value, the number of reports without an improvement, and the env steps of the last one."""
        return {"best": self._best, "without": self._without, "counted": self._counted}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._best, self._without, self._counted = state["best"], int(state["without"]), int(state.get("counted", 0))
