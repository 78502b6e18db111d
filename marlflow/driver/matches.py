"""Matches of a league: evaluation games that its matchmaker wants before the next round is dealt."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass

from marlflow.driver.faults import FaultBudget
from marlflow.driver.wrapped_workers import T, WrappedWorkers
from marlflow.league.matches import MatchingMatchmaker, play_matches
from marlflow.sampling.protocol import Assign, Request, Round, Workers


@dataclass(slots=True)
class MatchTimes:
    """Seconds that rounds have waited: for games of matches, and for choosing them and computing meta-strategies."""

    match_s: float = 0.0
    solve_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.match_s + self.solve_s


class MatchingWorkers(WrappedWorkers):
    """Workers that play the matches of `matchmaker` before each round, by the weights of its request.

    Rounds wait for them, so a round is dealt by the meta-strategies that follow from its matches; of asynchronous
    workers, those that are under way go on. `workers` deal.
    """

    def __init__(
        self, workers: Workers, matchmaker: MatchingMatchmaker, budget: FaultBudget, times: MatchTimes
    ) -> None:
        super().__init__(workers)
        self._matchmaker, self._budget, self._times = matchmaker, budget, times
        self._players = _TimedWorkers(workers, times)

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        await self._play(request)
        return await super().collect(request, assign)

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        if request is not None:
            await self._play(request)
        return await super().collect_next(request, assign)

    async def _play(self, request: Request) -> None:
        began_s, before_s = time.perf_counter(), self._times.match_s
        faults = await play_matches(self._matchmaker, self._players, request.weights)
        played_s = self._times.match_s - before_s
        self._times.solve_s += time.perf_counter() - began_s - played_s
        self._budget.account(faults)


class _TimedWorkers(WrappedWorkers):
    def __init__(self, workers: Workers, times: MatchTimes) -> None:
        super().__init__(workers)
        self._times = times

    async def _call(self, call: Awaitable[T]) -> T:
        began_s = time.perf_counter()
        try:
            return await call
        finally:
            self._times.match_s += time.perf_counter() - began_s
