"""What goes wrong and does not end a run by itself: each is said, all are counted, and beyond the budget the run ends.

It then ends in order: the round is finished, a checkpoint is taken, and only then the error is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from marlflow.base.errors import BudgetExceeded, EnvironmentFailed, EnvironmentHung, MarlflowError
from marlflow.base.fault_kind import FaultKind
from marlflow.base.items import Weights
from marlflow.config.experiment import Faults
from marlflow.policy.actor import EvaluationMode
from marlflow.sampling.faults import fault_of
from marlflow.sampling.protocol import FrozenPolicy, Matchup, Request, Round, Workers
from marlflow.sampling.receipts import Evaluated, Fault

log = logging.getLogger("marlflow")

_SAID: Mapping[FaultKind, str] = {
    FaultKind.ENV_ERRORS: "its episode was given up",
    FaultKind.ENV_HANGS: "its episode was given up",
    FaultKind.WORKERS_LOST: "it died and is replaced",
    FaultKind.LEARNERS_LOST: "it died and is replaced, as it was kept last",
    FaultKind.REPLAYS_LOST: "it died and is replaced, empty",
    FaultKind.UPDATES_SKIPPED: "a gradient was not finite, and its step was skipped",
    FaultKind.CHECKPOINTS_FAILED: "it could not be written",
    FaultKind.REPORTS_FAILED: "it could not be written",
    FaultKind.RECORDS_FAILED: "they could not be written, and wait in memory",
    FaultKind.CLOSES_FAILED: "it could not be closed",
}


class FaultBudget:
    """Counts faults by kind; `failure` is what ends the run, once there are more than `allowed`.

    `tell` shows a message.
    """

    def __init__(self, allowed: Faults, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._allowed = {FaultKind(name): count for name, count in asdict(allowed).items()}
        self.spent = dict.fromkeys(FaultKind, 0)
        self.failure: MarlflowError | None = None

    def spend(self, fault: Fault, count: int = 1) -> None:
        """`count` faults of one kind happened, of which `fault` is the last."""
        kind, allowed, before = fault.kind, self._allowed[fault.kind], self.spent[fault.kind]
        self.spent[kind] += count
        lost = f"; {fault.rows_lost} agent steps are lost" if fault.rows_lost else ""
        log.warning("%s: %s%s", fault.where, fault.reason, lost)
        if fault.user_traceback:
            log.info("what the environment was doing:\n%s", fault.user_traceback.rstrip())
        if before < allowed or self.failure is None:
            self._tell(f"{fault.where}: {_SAID[kind]}; {kind} {self.spent[kind]}, and faults.{kind} allows {allowed}")
        if self.spent[kind] > allowed and self.failure is None:
            self.failure = self._beyond(fault, min(before, allowed))

    def state(self) -> dict[str, int]:
        """How many faults of each kind there were."""
        return {kind.value: count for kind, count in self.spent.items()}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Continues from what `state` gave."""
        self.spent |= {FaultKind(name): count for name, count in state.items()}

    def account(self, faults: Sequence[Fault]) -> None:
        """All of several faults."""
        for fault in faults:
            self.spend(fault)

    def _beyond(self, fault: Fault, before: int) -> MarlflowError:
        kind, allowed = fault.kind, self._allowed[fault.kind]
        if kind.of_environment:
            reason = fault.reason
            if allowed:
                reason += f"; {_episodes(before)} given up before, and faults.{kind} allows no more"
            kind_of_failure = EnvironmentHung if kind is FaultKind.ENV_HANGS else EnvironmentFailed
            return kind_of_failure(fault.where, reason, fault.user_traceback)
        return BudgetExceeded(
            f"{fault.where}: {fault.reason}\nthat was {kind} {self.spent[kind]}, and faults.{kind} allows {allowed}"
        )

    def last_straw(self, failure: EnvironmentFailed) -> MarlflowError:
        """Counts what a worker raised whose own faults, in this round alone, are more than all that is allowed.

        Returns what ends the run: the first fault that is beyond its budget.
        """
        self.account([fault_of(one) for one in (*failure.earlier, failure)])
        return self.failure or failure


class BudgetedWorkers:
    """Workers whose environments may break as many episodes as a budget says.

    What a worker itself raises, because its environments broke more than all that is allowed in one round, becomes the
    first fault that is beyond its budget. The faults of rounds and evaluations are for whoever gets them.
    """

    def __init__(self, workers: Workers, budget: FaultBudget) -> None:
        self._workers, self._budget = workers, budget

    async def collect(self, request: Request) -> Round:
        """One round."""
        with self._last_straw_named():
            return await self._workers.collect(request)

    async def collect_next(self, request: Request | None) -> Round:
        """The part of one worker."""
        with self._last_straw_named():
            return await self._workers.collect_next(request)

    @property
    def under_way(self) -> int:
        """How many workers have begun what is still to come."""
        return self._workers.under_way

    async def evaluate(
        self,
        episodes: range,
        weights: Mapping[str, Weights],
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Evaluation episodes."""
        with self._last_straw_named():
            return await self._workers.evaluate(episodes, weights, matchups, mode, frozen)

    @contextmanager
    def _last_straw_named(self) -> Iterator[None]:
        try:
            yield
        except EnvironmentFailed as failure:
            raise self._budget.last_straw(failure) from failure.__cause__


def _episodes(count: int) -> str:
    return "1 episode was" if count == 1 else f"{count or 'no'} episodes were"
