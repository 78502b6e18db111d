"""When a run stops, and which of its learners stop learning before that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from marlflow.config.experiment import Experiment
from marlflow.driver.faults import FaultBudget
from marlflow.driver.graceful_shutdown import GracefulShutdown
from marlflow.driver.recording import DatasetProgress
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.time_limit import TimeLimit
from marlflow.flow import Executor
from marlflow.runtime.spec import RunSpec


class StopConditions:
    """The conditions of `stop` and of each learner's own `stop`, a signal, spent budgets, and the end of records."""

    def __init__(
        self,
        experiment: Experiment,
        spec: RunSpec,
        tally: RunMetrics,
        left: DatasetProgress,
        budget: FaultBudget,
        interrupt: GracefulShutdown,
        time_limit: TimeLimit,
    ) -> None:
        self._experiment, self._spec = experiment, spec
        self._tally, self._left = tally, left
        self._budget, self._interrupt, self._time_limit = budget, interrupt, time_limit
        self._ended: set[str] = set()

    def reason(self) -> str | None:
        """Why the run is to stop now; None if it is not."""
        stop = self._experiment.stop
        if self._budget.failure is not None:
            return "more faults than are allowed"
        if self._interrupt.asked is not None:
            return self._interrupt.asked
        if stop.env_steps is not None and self._tally.env_steps >= stop.env_steps:
            return f"stop.env_steps={stop.env_steps}"
        ends_s = self._time_limit.training_ends_s
        if ends_s is not None and time.perf_counter() >= ends_s:
            return f"stop.time_s={stop.time_s:g}"
        reached = [self._has_reached(name, target) for name, target in stop.policies.items()]
        if reached and all(reached):
            return ", ".join(f"stop.policies.{name}.return_mean={target:g}" for name, target in stop.policies.items())
        learners = self._spec.learners
        if learners and all(name in self._ended or self._has_read_all(name) for name in learners):
            return "the end of what was recorded" if self._left.nothing_of else "every policy's own stop"
        return None

    def end_learners(self, executor: Executor, tell: Callable[[str], None]) -> None:
        """Ends the plans of learners whose own stop holds, or whose records have ended; `tell` shows a message."""
        for name, learner in self._spec.learners.items():
            if name not in self._ended and (self._is_done(name) or self._has_read_all(name)):
                what = "enough" if self._is_done(name) else "all that was recorded"
                self._end(name, executor)
                who = f"policy {name} has" if learner.members == (name,) else f"learner {name} has"
                tell(f"{who} learned {what}: its plan ends, it goes on acting")

    def state(self) -> dict[str, Any]:
        """The stop of each learner whose plan has ended."""
        return {name: asdict(self._experiment.learner(name).stop) for name in sorted(self._ended)}

    def load_state(self, state: Mapping[str, Any], executor: Executor) -> None:
        """Ends the same plans again; where a learner's stop was changed since and does not hold, its plan resumes."""
        for name, stop in state.items():
            if stop == asdict(self._experiment.learner(name).stop) or self._is_done(name):
                self._end(name, executor)
            else:
                executor.rejoin(name)

    def _end(self, name: str, executor: Executor) -> None:
        self._ended.add(name)
        if self._is_done(name):
            executor.end_plan(name)  # items that wait are dropped
        else:
            executor.close_plan(name)  # its records have ended: what waits is still learned from

    def _has_read_all(self, learner: str) -> bool:
        """Whether its policies have been given all rows that were recorded for them."""
        return self._left.nothing_of.issuperset(self._spec.learners[learner].members)

    def _is_done(self, learner: str) -> bool:
        """Whether a learner's own stop holds: for its policies' agent steps together, and for each one's return."""
        stop, members = self._experiment.learner(learner).stop, self._spec.learners[learner].members
        if stop.agent_steps is not None and self._tally.agent_steps_sampled_for(learner) >= stop.agent_steps:
            return True
        target = stop.return_mean
        return target is not None and all(self._has_reached(name, target) for name in members)

    def _has_reached(self, policy: str, target: float) -> bool:
        mean = self._tally.policies[policy].settled_return_mean
        return mean is not None and mean >= target
