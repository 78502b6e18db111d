"""Matches of a league: evaluation games that its matchmaker wants before the next round is dealt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marlflow.base.items import Weights
from marlflow.driver.faults import FaultBudget
from marlflow.league.matches import MatchingMatchmaker, play_matches
from marlflow.policy.actor import EvaluationModes
from marlflow.sampling.protocol import Assign, FrozenPolicy, Matchup, Request, Round, Workers
from marlflow.sampling.receipts import Evaluated


class MatchingWorkers:
    """Workers that play the matches of `matchmaker` before each round, by the weights of its request.

    Rounds wait for them, so a round is dealt by the meta-strategies that follow from its matches; of asynchronous
    workers, those that are under way go on. `workers` deal.
    """

    def __init__(self, workers: Workers, matchmaker: MatchingMatchmaker, budget: FaultBudget) -> None:
        self._workers, self._matchmaker, self._budget = workers, matchmaker, budget

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        self._budget.account(await play_matches(self._matchmaker, self._workers, request.weights))
        return await self._workers.collect(request, assign)

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        if request is not None:
            self._budget.account(await play_matches(self._matchmaker, self._workers, request.weights))
        return await self._workers.collect_next(request, assign)

    @property
    def under_way(self) -> int:
        return self._workers.under_way

    async def evaluate(
        self,
        episodes: Sequence[int],
        weights: Mapping[str, Weights],
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationModes = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        return await self._workers.evaluate(episodes, weights, matchups, mode, frozen)
