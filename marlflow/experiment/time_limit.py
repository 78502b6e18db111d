"""`stop.time_s`: training ends early enough for the last evaluation, and workers know when everything has to end."""

from __future__ import annotations

from marlflow.experiment.evaluating import Evaluator
from marlflow.experiment.experiment import Stop
from marlflow.rollout.deadline import Deadline
from marlflow.runtime.protocol import Runtime


class TimeLimit:
    """Of a run; without `stop.time_s` there is none. Times are those of time.perf_counter."""

    def __init__(self, stop: Stop, evaluator: Evaluator, runtime: Runtime) -> None:
        self._stop, self._evaluator, self._runtime = stop, evaluator, runtime
        self._told_s: float | None = None

    def training_ends_s(self, began_s: float) -> float | None:
        """When training ends; until stop.time_s is over there is as much time as the last evaluation took."""
        if (time_s := self._stop.time_s) is None:
            return None
        return began_s + time_s - min(self._evaluator.expected_s, time_s / 2)

    def limit_training(self, began_s: float) -> None:
        """What workers are asked from here on ends with training."""
        self._tell(self.training_ends_s(began_s))

    def limit_last_evaluation(self, began_s: float) -> None:
        """What workers are asked from here on may take longer than stop.time_s by its grace."""
        self._tell(None if self._stop.time_s is None else began_s + self._stop.time_s + self._stop.grace_s)

    def _tell(self, ends_s: float | None) -> None:
        if ends_s is not None and ends_s != self._told_s:
            self._told_s = ends_s
            self._runtime.end_by(Deadline(ends_s, self._stop.grace_s))
