"""The clock of a run, and the time limit `stop.time_s`, which leaves time for the last evaluation."""

from __future__ import annotations

import time

from marlflow.config.experiment import Stop
from marlflow.driver.evaluation import Evaluator
from marlflow.runtime.protocol import Runtime
from marlflow.sampling.deadline import Deadline


class RunClock:
    """Measures the seconds of a run, including those before a resume.

    `began_s`: the start in seconds of time.perf_counter, shifted by the seconds before a resume. `training_s`: the
    seconds up to the last round, without evaluations.
    """

    def __init__(self) -> None:
        self._before_s = self.training_s = 0.0
        self.began_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began_s

    def begin(self) -> None:
        """Start the clock; setup before this call does not count."""
        self.began_s = time.perf_counter() - self._before_s

    def resume(self, elapsed_s: float, training_s: float) -> None:
        """Continue from the seconds stored in a checkpoint."""
        self._before_s, self.training_s = elapsed_s, training_s
        self.begin()


class TimeLimit:
    """Passes the limit `stop.time_s`, if there is one, to the rollout workers."""

    def __init__(self, stop: Stop, clock: RunClock, evaluator: Evaluator, runtime: Runtime) -> None:
        self._stop, self._clock, self._evaluator, self._runtime = stop, clock, evaluator, runtime
        self._limit_s: float | None = None

    @property
    def training_ends_s(self) -> float | None:
        """When training ends, in seconds of time.perf_counter; the last evaluation gets the expected time."""
        if (time_s := self._stop.time_s) is None:
            return None
        # At most half of the time is set aside, so that a slow evaluation cannot take up all of it.
        return self._clock.began_s + time_s - min(self._evaluator.expected_s, time_s / 2)

    def limit_training(self) -> None:
        """Make later requests to workers end when training ends."""
        self._limit(self.training_ends_s)

    def limit_last_evaluation(self) -> None:
        """Make later requests to workers end at `stop.time_s` plus its grace period."""
        self._limit(
            None if self._stop.time_s is None else self._clock.began_s + self._stop.time_s + self._stop.grace_period_s
        )

    def _limit(self, ends_s: float | None) -> None:
        # Sent only when it changes, since each deadline is a message to every worker.
        if ends_s is not None and ends_s != self._limit_s:
            self._limit_s = ends_s
            self._runtime.end_by(Deadline(ends_s, self._stop.grace_period_s))
