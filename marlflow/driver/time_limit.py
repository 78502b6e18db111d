"""The clock of a run, and `stop.time_s`: training ends early enough for the last evaluation."""

from __future__ import annotations

import time

from marlflow.config.experiment import Stop
from marlflow.driver.evaluation import Evaluator
from marlflow.runtime.protocol import Runtime
from marlflow.sampling.deadline import Deadline


class RunClock:
    """Seconds of a run, including those before a resume.

    `began_s` is when the run began, in seconds of time.perf_counter, as if it had not been stopped in between.
    `training_s` are the seconds up to the last round, without evaluations.
    """

    def __init__(self) -> None:
        self._before_s = self.training_s = 0.0
        self.began_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began_s

    def begin(self) -> None:
        """Starts the clock: setting the run up, until here, does not count."""
        self.began_s = time.perf_counter() - self._before_s

    def resume(self, elapsed_s: float, training_s: float) -> None:
        """Continues from what the clock showed at a checkpoint."""
        self._before_s, self.training_s = elapsed_s, training_s
        self.begin()


class TimeLimit:
    """`stop.time_s` of a run, told to its workers; without it there is no limit."""

    def __init__(self, stop: Stop, clock: RunClock, evaluator: Evaluator, runtime: Runtime) -> None:
        self._stop, self._clock, self._evaluator, self._runtime = stop, clock, evaluator, runtime
        self._told_s: float | None = None

    @property
    def training_ends_s(self) -> float | None:
        """When training ends, in seconds of time.perf_counter: the last evaluation gets as long as one took before."""
        if (time_s := self._stop.time_s) is None:
            return None
        return self._clock.began_s + time_s - min(self._evaluator.expected_s, time_s / 2)

    def limit_training(self) -> None:
        """Requests to workers from here on end with training."""
        self._tell(self.training_ends_s)

    def limit_last_evaluation(self) -> None:
        """Requests to workers from here on may take longer than stop.time_s by its grace period."""
        self._tell(
            None if self._stop.time_s is None else self._clock.began_s + self._stop.time_s + self._stop.grace_period_s
        )

    def _tell(self, ends_s: float | None) -> None:
        if ends_s is not None and ends_s != self._told_s:
            self._told_s = ends_s
            self._runtime.end_by(Deadline(ends_s, self._stop.grace_period_s))
