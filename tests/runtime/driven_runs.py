"""Runs driven by hand, some rounds at a time, so that a test may act before any round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import marlflow as mf
from marlflow.base.errors import FaultKind
from marlflow.checks.validation import ready
from marlflow.config.plans import RoundHooks, build_plan
from marlflow.flow import Executor
from marlflow.replay.protocol import learner_of_replay
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.protocol import Request, Round
from marlflow.sampling.receipts import Fault


@dataclass
class DrivenRun:
    """A run, and what was seen of it: rounds, updates, faults, and the versions that each round was asked for with."""

    experiment: mf.Experiment
    spec: RunSpec
    runtime: Runtime
    parts: Any = None
    rounds: list[Round] = field(default_factory=list)
    updates: dict[str, list[mf.Update]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    versions: dict[str, list[int]] = field(default_factory=dict)
    executor: Any = None

    def play(self, rounds: int, before: dict[int, Callable[[], None]] | None = None) -> None:
        """So many rounds, and all that comes of them; `before[n]` is called before the n-th of them is asked for."""
        first, calls = len(self.rounds), dict(before or {})

        def is_enough() -> bool:
            number = len(self.rounds) - first
            if number < rounds and (call := calls.pop(number, None)) is not None:
                call()
            return number == rounds

        self.play_until(is_enough)

    def play_until(self, is_enough: Callable[[], bool]) -> None:
        """Rounds, and all that comes of them, until it is enough, which is asked before each."""

        def request() -> Request | None:
            if is_enough():
                return None
            number = len(self.rounds)
            weights = self.parts.published()
            for name, published in weights.items():
                self.versions.setdefault(name, []).append(published.version)
            return Request(number, weights, {})

        plan = build_plan(self.experiment, self.spec, self.parts, RoundHooks(request, self._made))
        self.executor = Executor(plan, self._updated)
        self.executor.run_sync()

    def fault(self, fault: Fault) -> None:
        """A loss that the runtime reports: a process ended."""
        self.faults.append(fault)
        if fault.kind is FaultKind.REPLAYS_LOST:
            self.executor.reapply_starts(learner_of_replay(fault.replay), fault.replay)

    def dropped(self, stage: str) -> int:
        """Items that were lost at a stage, in what was played last."""
        return int(self.executor.meters()[stage]["dropped"])

    def _made(self, round: Round) -> Round:
        self.rounds.append(round)
        return round

    def _updated(self, plan: str, item: Any) -> None:
        if isinstance(item, mf.Update):
            self.updates.setdefault(plan, []).append(item)


@contextmanager
def driven(experiment: mf.Experiment, runtime: Runtime) -> Iterator[DrivenRun]:
    """A run whose parts are set up, until it is left."""
    run = DrivenRun(experiment, ready(experiment).spec, runtime)
    try:
        run.parts = runtime.start(run.spec, run.fault)
        yield run
    finally:
        runtime.close()
