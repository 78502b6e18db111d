"""When a run stops, and which of its policies stop learning before that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from marlflow.experiment.experiment import Experiment, Policy
from marlflow.experiment.faults import FaultBudget
from marlflow.experiment.interrupt import Interrupt
from marlflow.experiment.recording import DatasetProgress
from marlflow.experiment.tally import Tally
from marlflow.experiment.time_limit import TimeLimit
from marlflow.flow import Executor
from marlflow.runtime.spec import RunSpec


class StopConditions:
    """The conditions of `stop` and of each policy's own `stop`, a signal, spent budgets, and the end of records."""

    def __init__(
        self,
        experiment: Experiment,
        spec: RunSpec,
        tally: Tally,
        left: DatasetProgress,
        budget: FaultBudget,
        interrupt: Interrupt,
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
        if self._spec.learning and self._ended | self._left.nothing_of == set(self._spec.learning):
            return "the end of what was recorded" if self._left.nothing_of else "every policy's own stop"
        return None

    def end_policies(self, executor: Executor, tell: Callable[[str], None]) -> None:
        """Ends the plans of policies whose own stop holds, or whose records have ended; `tell` shows a message."""
        for name in self._spec.learning:
            if name not in self._ended and (self._is_done(name) or name in self._left.nothing_of):
                what = "enough" if self._is_done(name) else "all that was recorded"
                self._end(name, executor)
                tell(f"policy {name} has learned {what}: its plan ends, it goes on acting")

    def state(self) -> dict[str, Any]:
        """The stop of each policy whose plan has ended."""
        return {name: asdict(self._policy(name).stop) for name in sorted(self._ended)}

    def load_state(self, state: Mapping[str, Any], executor: Executor) -> None:
        """Ends the same plans again; where a policy's stop was changed since and does not hold, its plan resumes."""
        for name, stop in state.items():
            if stop == asdict(self._policy(name).stop) or self._is_done(name):
                self._end(name, executor)
            else:
                executor.rejoin(name)

    def _end(self, name: str, executor: Executor) -> None:
        self._ended.add(name)
        if self._is_done(name):
            executor.end_plan(name)  # items that wait are dropped
        else:
            executor.close_plan(name)  # its records have ended: what waits is still learned from

    def _policy(self, name: str) -> Policy:
        return self._experiment.policies.get(name, self._experiment.default_policy)

    def _is_done(self, name: str) -> bool:
        """Whether a policy's own stop holds."""
        limit, target = self._policy(name).stop.agent_steps, self._policy(name).stop.return_mean
        sampled = self._tally.policies[name].agent_steps_sampled
        return (limit is not None and sampled >= limit) or (target is not None and self._has_reached(name, target))

    def _has_reached(self, policy: str, target: float) -> bool:
        mean = self._tally.policies[policy].settled_return_mean
        return mean is not None and mean >= target
