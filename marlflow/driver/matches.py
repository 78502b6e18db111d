"""Matches of a league: evaluation games that its matchmaker wants before the next round is dealt."""

from __future__ import annotations

import time

from marlflow.driver.faults import FaultBudget
from marlflow.driver.wrapped_workers import WrappedWorkers
from marlflow.league.matches import MatchingMatchmaker, play_matches
from marlflow.sampling.protocol import Request, Round, Workers


class MatchingWorkers(WrappedWorkers):
    """Workers that play the matches of `matchmaker` before each round, by the weights of its request.

    Rounds wait for them, so a round is dealt by the meta-strategies that follow from its matches. `workers` deal.
    `spent_s`: seconds that rounds have waited so far.
    """

    def __init__(self, workers: Workers, matchmaker: MatchingMatchmaker, budget: FaultBudget) -> None:
        super().__init__(workers)
        self._matchmaker, self._budget = matchmaker, budget
        self.spent_s = 0.0

    async def collect(self, request: Request) -> Round:
        began_s = time.perf_counter()
        faults = await play_matches(self._matchmaker, self._workers, request.weights)
        self.spent_s += time.perf_counter() - began_s
        self._budget.account(faults)
        return await super().collect(request)
