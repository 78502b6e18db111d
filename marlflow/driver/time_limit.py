"""The clock of a run, and the time limit `stop.time_s`."""

from __future__ import annotations

import time
from collections.abc import Callable

from marlflow.base.serialization import Tree
from marlflow.config.experiment import Stop
from marlflow.driver.evaluation import Evaluator
from marlflow.driver.service import Service
from marlflow.runtime.protocol import Runtime
from marlflow.sampling.protocol import Round
from marlflow.sampling.watchdog import Deadline

_UPDATES_FINISH_S = 5.0


class RunClock(Service):
    """Measures the seconds of a run, including those before a resume.

    `began_s` is the start in seconds of time.perf_counter, as if the run had never stopped. `training_s` is the time up
    to the last round without `evaluated_s`, the seconds of evaluations and matches so far: `env_steps_per_s` is the
    speed of training.
    """

    def __init__(self, evaluated_s: Callable[[], float]) -> None:
        self._evaluated_s = evaluated_s
        self._before_s = self.training_s = 0.0
        self.began_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began_s

    def begin(self) -> None:
        # Setting up does not count.
        self.began_s = time.perf_counter() - self._before_s

    async def after_round(self, round: Round) -> None:
        self.training_s = self.elapsed_s - self._evaluated_s()

    def state(self) -> Tree:
        return {"elapsed_s": self.elapsed_s, "training_s": self.training_s}

    def load_state(self, state: Tree) -> None:
        self._before_s, self.training_s = state["elapsed_s"], state["training_s"]
        self.begin()


class TimeLimit(Service):
    """Passes the limit `stop.time_s` to the rollout workers and learners."""

    def __init__(self, stop: Stop, clock: RunClock, evaluator: Evaluator, runtime: Runtime) -> None:
        self._stop = stop
        self._clock = clock
        self._evaluator = evaluator
        self._runtime = runtime
        self._limit_s: float | None = None

    @property
    def training_ends_s(self) -> float | None:
        """When training ends, in seconds of time.perf_counter, to leave time for the last evaluation."""
        if (time_s := self._stop.time_s) is None:
            return None
        # At most half of the time is set aside, so that a slow evaluation cannot use all of it.
        return self._clock.began_s + time_s - min(self._evaluator.expected_s, time_s / 2)

    def begin(self) -> None:
        self.limit_training()

    def limit_training(self) -> None:
        """End later requests when training ends, and updates soon after."""
        # The rows of a round that ends with the time are learned from, if that does not take long.
        if (ends_s := self.training_ends_s) is not None and self._limit(ends_s):
            self._runtime.end_updates_at(ends_s + updates_finish_s(self._stop))

    def after_training(self) -> None:
        # The last evaluation may use the grace period.
        if self._stop.time_s is not None:
            self._limit(self._clock.began_s + self._stop.time_s + self._stop.grace_period_s)

    def _limit(self, ends_s: float) -> bool:
        # Sent only when it changes, since each deadline is a message to every worker.
        if ends_s == self._limit_s:
            return False
        self._limit_s = ends_s
        self._runtime.end_by(Deadline(ends_s, self._stop.grace_period_s))
        return True


def updates_finish_s(stop: Stop) -> float:
    """Return the seconds in which updates may still finish after the end of training, or after a signal.

    Longer ones end between two minibatches, which leaves most of the grace period to the checkpoint.
    """
    return min(_UPDATES_FINISH_S, stop.grace_period_s / 4)
