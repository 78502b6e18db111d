"""Episodes that environments broke: each is said, all are counted, and beyond the budget the run ends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

from marlflow.base.errors import EnvironmentFailed
from marlflow.base.items import Weights
from marlflow.experiment.experiment import Faults
from marlflow.rollout.fragment import Evaluated, Fault
from marlflow.rollout.protocol import Matchup, Request, Round, Workers

log = logging.getLogger("marlflow")

_Made = TypeVar("_Made", Round, Evaluated)


class BudgetedWorkers:
    """Workers whose environments may break as many episodes as `budget` says; `tell` shows a message.

    The next one raises EnvironmentFailed: it is that fault's, and says how many were given up before. Whoever has the
    round calls `account`, once it is counted: so the run's last figures are complete.
    """

    def __init__(self, workers: Workers, budget: Faults, tell: Callable[[str], None]) -> None:
        self._workers, self._tell = workers, tell
        self._allowed: Mapping[str, int] = asdict(budget)
        self._spent = dict.fromkeys(self._allowed, 0)

    def collect(self, request: Request) -> Round | Awaitable[Round]:
        """One round; its faults are for `account`."""
        try:
            made = self._workers.collect(request)
        except EnvironmentFailed as failure:
            raise self._last_straw(failure) from failure.__cause__
        return self._awaited(made) if isinstance(made, Awaitable) else made

    def evaluate(
        self, episodes: range, weights: Mapping[str, Weights], matchups: Sequence[Matchup] | None = None
    ) -> Evaluated | Awaitable[Evaluated]:
        """Greedy episodes; their faults are for `account`."""
        try:
            made = self._workers.evaluate(episodes, weights, matchups)
        except EnvironmentFailed as failure:
            raise self._last_straw(failure) from failure.__cause__
        return self._awaited(made) if isinstance(made, Awaitable) else made

    async def _awaited(self, made: Awaitable[_Made]) -> _Made:
        try:
            return await made
        except EnvironmentFailed as failure:
            raise self._last_straw(failure) from failure.__cause__

    def account(self, faults: Sequence[Fault]) -> None:
        """What a round or an evaluation lost; raises EnvironmentFailed beyond the budget."""
        for fault in faults:
            self._said(fault)
        for fault in faults:
            allowed = self._allowed[fault.kind]
            if self._spent[fault.kind] > allowed:
                before = f"{_episodes(allowed)} given up before"
                reason = f"{fault.reason}; {before}, and faults.{fault.kind} allows no more"
                raise EnvironmentFailed(fault.where, reason, fault.user_traceback)

    def _said(self, fault: Fault) -> None:
        kind, allowed = fault.kind, self._allowed[fault.kind]
        self._spent[kind] += 1
        log.warning("%s: %s; %d agent steps of it are lost", fault.where, fault.reason, fault.rows_lost)
        if fault.user_traceback:
            log.info("what the environment was doing:\n%s", fault.user_traceback.rstrip())
        self._tell(f"an episode was given up: {kind} {self._spent[kind]}, and faults.{kind} allows {allowed}")

    def _last_straw(self, failure: EnvironmentFailed) -> EnvironmentFailed:
        """What a worker raised whose own faults, in this round alone, are more than all that is allowed."""
        if not any(self._allowed.values()):
            return failure
        allows = ", ".join(f"{kind} {allowed}" for kind, allowed in self._allowed.items())
        before = f"{_episodes(sum(self._spent.values()))} given up in earlier rounds"
        reason = f"{failure.reason}; that is beyond faults ({allows}), and {before}"
        return EnvironmentFailed(failure.where, reason, failure.user_traceback)


def _episodes(count: int) -> str:
    return "1 episode was" if count == 1 else f"{count or 'no'} episodes were"
