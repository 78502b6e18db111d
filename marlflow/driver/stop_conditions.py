"""The clock of a run, its time limit and stop conditions, and early stopping of single learners."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from marlflow.base.serialization import Tree
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Stop
from marlflow.driver.callbacks import Callbacks
from marlflow.driver.evaluation import Evaluator
from marlflow.driver.faults import FaultBudget
from marlflow.driver.graceful_shutdown import GracefulShutdown
from marlflow.driver.recording import DatasetProgress
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.flow import Executor
from marlflow.runs.run_state import STOP, is_stop_requested
from marlflow.runtime.protocol import Runtime
from marlflow.sampling.protocol import Round
from marlflow.sampling.watchdog import Deadline

_UPDATES_FINISH_S = 5.0
_LOOKS_EVERY_S = 1.0


class RunClock(Service):
    """Measures the seconds of a run, including the time before a resume.

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
    """Passes the limit `stop.time_s` to the rollout workers and learners, and lets updates finish after a signal."""

    def __init__(
        self, stop: Stop, clock: RunClock, evaluator: Evaluator, runtime: Runtime, shutdown: GracefulShutdown
    ) -> None:
        self._stop, self._shutdown = stop, shutdown
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
        # The learners still use the rows of a round that the deadline ended, if that does not take long.
        if (ends_s := self.training_ends_s) is not None and self._limit(ends_s):
            self._runtime.end_updates_at(ends_s + updates_finish_s(self._stop))

    async def after_round(self, round: Round) -> None:
        # The round took the time in which updates were to finish after the signal, or ends by it only now.
        if self._shutdown.requested:
            self._runtime.end_updates_at(time.perf_counter() + updates_finish_s(self._stop))

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
    """Return the seconds in which updates may still finish after the end of training, a signal, or the round after it.

    Longer updates end between two minibatches, which leaves most of the grace period to the checkpoint.
    """
    return min(_UPDATES_FINISH_S, stop.grace_period_s / 4)


class StopConditions(Service):
    """Checks `stop` of the run and of each learner, signals, fault budgets, callbacks, and the end of datasets.

    Also whether a file in `run_dir` asks the run to stop.
    """

    def __init__(
        self,
        checked: CheckedExperiment,
        metrics: RunMetrics,
        progress: DatasetProgress,
        budget: FaultBudget,
        shutdown: GracefulShutdown,
        time_limit: TimeLimit,
        callbacks: Callbacks,
        executor: Executor,
        notify: Callable[[str], None],
        run_dir: Path,
    ) -> None:
        self._run_dir, self._looks_s, self._is_asked = run_dir, -math.inf, False
        self._experiment, self._spec = checked.experiment, checked.spec
        self._metrics = metrics
        self._progress = progress
        self._budget = budget
        self._shutdown = shutdown
        self._time_limit = time_limit
        self._callbacks = callbacks
        self._executor, self._notify = executor, notify
        self._ended: set[str] = set()

    def reason(self) -> str | None:
        """Return why the run must stop now, or None."""
        stop = self._experiment.stop
        if self._budget.failure is not None:
            return "more faults than are allowed"
        if asked := self._shutdown.requested or self._callbacks.stop_reason or self._request():
            return asked
        if stop.env_steps is not None and self._metrics.env_steps >= stop.env_steps:
            return f"stop.env_steps={stop.env_steps}"
        # Checked between rounds; workers also stop a round that is running at this time.
        ends_s = self._time_limit.training_ends_s
        if ends_s is not None and time.perf_counter() >= ends_s:
            return f"stop.time_s={stop.time_s:g}"
        reached = [self._has_reached(name, target) for name, target in stop.policies.items()]
        if reached and all(reached):
            return ", ".join(f"stop.policies.{name}.return_mean={target:g}" for name, target in stop.policies.items())
        learners = self._spec.learners
        # A plan that has read all gets one more round, in which it ends and learns from what its stages still hold.
        if learners and all(name in self._ended for name in learners):
            return "the end of what was recorded" if self._progress.finished else "every policy's own stop"
        return None

    def _request(self) -> str | None:
        # Rounds may be short, and folders on another machine.
        if (now_s := time.perf_counter()) >= self._looks_s and not self._is_asked:
            self._is_asked, self._looks_s = is_stop_requested(self._run_dir), now_s + _LOOKS_EVERY_S
        return f"{STOP} in its folder" if self._is_asked else None

    def before_round(self) -> None:
        """End the plans of learners that have had enough, before they get the rows of another round."""
        for name in self._spec.learners:
            if name not in self._ended and self._is_done(name):
                self._end(name, "enough")

    async def after_round(self, round: Round) -> None:
        for name in self._spec.learners:
            if name not in self._ended and self._has_read_all(name):
                self._end(name, "all that was recorded")

    def state(self) -> Tree:
        # Saved with the condition: a resumed run may have another one, and then the learner continues to learn.
        return {name: asdict(self._experiment.learner(name).stop) for name in sorted(self._ended)}

    def load_state(self, state: Tree) -> None:
        for name, stop in state.items():
            if stop == asdict(self._experiment.learner(name).stop) or self._is_done(name):
                self._end(name)
            else:
                self._executor.rejoin(name)

    def _end(self, name: str, reason: str = "") -> None:
        self._ended.add(name)
        # It still learns from what waits in its queue.
        self._executor.close_plan(name)
        if reason:
            members = self._spec.learners[name].members
            learner_has = f"policy {name} has" if members == (name,) else f"learner {name} has"
            self._notify(f"{learner_has} learned {reason}: its plan ends, and it continues to act")

    def _has_read_all(self, learner: str) -> bool:
        return self._progress.finished.issuperset(self._spec.learners[learner].members)

    def _is_done(self, learner: str) -> bool:
        stop, members = self._experiment.learner(learner).stop, self._spec.learners[learner].members
        # Agent steps count in sum over the learner's policies; the return must be reached by each of them.
        if stop.agent_steps is not None and self._metrics.agent_steps_sampled_for(learner) >= stop.agent_steps:
            return True
        target = stop.return_mean
        return target is not None and all(self._has_reached(name, target) for name in members)

    def _has_reached(self, policy: str, target: float) -> bool:
        return_mean = self._metrics.policies[policy].settled_return_mean
        return return_mean is not None and return_mean >= target
