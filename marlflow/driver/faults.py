"""Fault tolerance: faults that do not end a run by themselves are counted, up to a budget per kind.

Beyond its budget the run ends in order: after the round and a checkpoint, the error is raised. Lost processes are
restarted by the runtime: see `runtime.ray.remote_worker` and `runtime.ray.handles`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

from marlflow.base.errors import BudgetExceeded, EnvironmentFailed, EnvironmentHung, FaultKind, MarlflowError
from marlflow.batches.items import Update
from marlflow.config.experiment import Faults
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.sampling.protocol import Assign, EvaluationRequest, Request, Round, Workers
from marlflow.sampling.receipts import Evaluated, Fault, fault_of

T = TypeVar("T")


class WrappedWorkers:
    """Workers that pass each call on to `workers`; subclasses override single methods, or `_call` for all calls."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def _call(self, call: Awaitable[T]) -> T:
        """Return the result of a call of the wrapped workers."""
        return await call

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        return await self._call(self._workers.collect(request, assign))

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        return await self._call(self._workers.collect_next(request, assign))

    @property
    def under_way(self) -> int:
        return self._workers.under_way

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        return await self._call(self._workers.evaluate(request))


log = logging.getLogger("marlflow")

_CONSEQUENCES: Mapping[FaultKind, str] = {
    FaultKind.ENV_ERRORS: "its episode was discarded",
    FaultKind.ENV_HANGS: "its episode was discarded",
    FaultKind.WORKERS_LOST: "it died and is replaced",
    FaultKind.LEARNERS_LOST: "it died and is replaced, as it was kept last",
    FaultKind.REPLAYS_LOST: "it died and is replaced, empty",
    FaultKind.UPDATES_SKIPPED: "a gradient was not finite, and its step was skipped",
    FaultKind.CHECKPOINTS_FAILED: "it could not be written",
    FaultKind.REPORTS_FAILED: "it could not be written",
    FaultKind.RECORDS_FAILED: "they could not be written, and wait in memory",
    FaultKind.CLOSES_FAILED: "it could not be closed",
    FaultKind.CALLBACKS_FAILED: "it raised, and the run continues",
}


class FaultBudget(Service):
    """Counts faults by kind; `failure` is the error that ends the run, once a kind exceeds `allowed`.

    `metrics` count the faults that are in no receipt, for reports. `observe`, if set, receives each fault, with its
    count.
    """

    def __init__(self, allowed: Faults, metrics: RunMetrics, notify: Callable[[str], None]) -> None:
        self._metrics, self._notify = metrics, notify
        self.observe: Callable[[Fault, int], None] | None = None
        self._allowed = {
            FaultKind(name): math.inf if count is None else count for name, count in asdict(allowed).items()
        }
        self.spent = dict.fromkeys(FaultKind, 0)

    def faulted(self, fault: Fault) -> None:
        """Count a fault that is in no receipt and no update."""
        self._metrics.faulted([fault])
        self.spend(fault)

    def spend(self, fault: Fault, count: int = 1) -> None:
        """Count, log and show `count` faults of one kind."""
        kind, allowed = fault.kind, self._allowed[fault.kind]
        before = self.spent[kind]
        self.spent[kind] += count
        lost = f"; {fault.rows_lost} agent steps are lost" if fault.rows_lost else ""
        # The line below has the reason of a callback's fault, too.
        level = logging.INFO if kind is FaultKind.CALLBACKS_FAILED else logging.WARNING
        log.log(level, "%s: %s%s", fault.where, fault.reason, lost)
        if fault.user_traceback:
            culprit = "callback" if kind is FaultKind.CALLBACKS_FAILED else "environment"
            log.info("what the %s was doing:\n%s", culprit, fault.user_traceback.rstrip())
        # Once the run is ending, faults beyond the budget are only logged.
        if before < allowed or self.failure is None:
            limit = "any number" if allowed == math.inf else allowed
            reason = f" ({fault.reason})" if kind is FaultKind.CALLBACKS_FAILED else ""
            self._notify(
                f"{fault.where}: {_CONSEQUENCES[kind]}{reason}; {kind} {self.spent[kind]}, and faults.{kind} allows "
                f"{limit}"
            )
        if self.spent[kind] > allowed and self.failure is None:
            self.failure = self._beyond(fault, int(min(before, allowed)))
        if self.observe is not None:
            self.observe(fault, count)

    def state(self) -> dict[str, int]:
        return {kind.value: count for kind, count in self.spent.items()}

    def load_state(self, state: Mapping[str, int]) -> None:
        self.spent |= {FaultKind(name): count for name, count in state.items()}

    async def after_round(self, round: Round) -> None:
        self.account([fault for receipt in round.receipts for fault in receipt.faults])

    def updated(self, learner: str, update: Update) -> None:
        if update.updates_skipped:
            reason = "its gradient was not finite, so there was no step; lower the learning rate, or scale the rewards"
            skipped = Fault(FaultKind.UPDATES_SKIPPED, f"learner {learner}", reason, "", 0)
            self.spend(skipped, update.updates_skipped)

    def account(self, faults: Sequence[Fault]) -> None:
        """Count each of `faults`, which reports have otherwise."""
        for fault in faults:
            self.spend(fault)

    def report_environment_faults(self) -> None:
        """Add the environment faults of a failed round to the metrics, because its receipts are lost."""
        self._metrics.faults |= {kind.value: self.spent[kind] for kind in FaultKind if kind.of_environment}

    def _beyond(self, fault: Fault, before: int) -> MarlflowError:
        kind, allowed = fault.kind, self._allowed[fault.kind]
        if kind.of_environment:
            reason = fault.reason
            if allowed:
                reason += f"; {_episodes(before)} discarded before, and faults.{kind} allows no more"
            kind_of_failure = EnvironmentHung if kind is FaultKind.ENV_HANGS else EnvironmentFailed
            return kind_of_failure(fault.where, reason, fault.user_traceback)
        return BudgetExceeded(
            f"{fault.where}: {fault.reason}\nthat was {kind} {self.spent[kind]}, and faults.{kind} allows {allowed}"
        )

    def first_beyond_budget(self, failure: EnvironmentFailed) -> MarlflowError:
        """Count the faults in a worker's error; return the first beyond its budget."""
        self.account([fault_of(error) for error in (*failure.earlier, failure)])
        # A worker stops after more faults than all budgets allow together, so one budget is exceeded here.
        return self.failure or failure


class BudgetedWorkers(WrappedWorkers):
    """Workers whose environment errors are raised as the first fault beyond the budget.

    Faults within the budget come in receipts.
    """

    def __init__(self, workers: Workers, budget: FaultBudget) -> None:
        super().__init__(workers)
        self._budget = budget

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except EnvironmentFailed as failure:
            raise self._budget.first_beyond_budget(failure) from failure.__cause__


def _episodes(count: int) -> str:
    return "1 episode was" if count == 1 else f"{count or 'no'} episodes were"
