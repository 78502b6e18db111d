"""Matches of a league: evaluation games that its matchmaker requests, played between rounds or during them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace

from marlflow.base.serialization import Tree
from marlflow.driver.faults import FaultBudget
from marlflow.driver.service import Service
from marlflow.driver.wrapped_workers import T, WrappedWorkers
from marlflow.league.matches import MOST_ATTEMPTS, MatchingMatchmaker, play_matches
from marlflow.matchmaking.dealer import Dealer
from marlflow.sampling.protocol import Assign, EvaluationRequest, Request, Round, Workers
from marlflow.sampling.receipts import Evaluated


@dataclass(slots=True)
class MatchTimes(Service):
    """Seconds that rounds waited for games of matches, and for choosing these and computing meta-strategies."""

    match_s: float = 0.0
    solve_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.match_s + self.solve_s

    def state(self) -> Tree:
        return {"match_s": self.match_s, "solve_s": self.solve_s}

    def load_state(self, state: Tree) -> None:
        self.match_s, self.solve_s = state["match_s"], state["solve_s"]


def with_matches(
    workers: Workers, referees: Workers | None, dealer: Dealer, waits: bool, budget: FaultBudget, times: MatchTimes
) -> Workers:
    """Return `workers` that deal, with the matches of the dealer's matchmaker, if it has any.

    With `waits`, rounds wait for `referees` too, because the results decide how the next round is dealt.
    """
    if not isinstance(matchmaker := dealer.matchmaker, MatchingMatchmaker):
        return workers
    if referees is None:
        return MatchingWorkers(workers, workers, matchmaker, budget, times)
    referees = _Referees(referees, dealer)
    kind = MatchingWorkers if waits else RefereedWorkers
    return kind(workers, referees, matchmaker, budget, times)


class MatchingWorkers(WrappedWorkers):
    """Workers that wait before each round for the matches of `matchmaker`, by the weights of the round's request.

    `players` play them. A round is therefore dealt by the meta-strategies that follow from these matches. Asynchronous
    workers that are collecting continue.
    """

    def __init__(
        self,
        workers: Workers,
        players: Workers,
        matchmaker: MatchingMatchmaker,
        budget: FaultBudget,
        times: MatchTimes,
    ) -> None:
        super().__init__(workers)
        self._matchmaker, self._budget, self._times = matchmaker, budget, times
        self._players = _TimedWorkers(players, times)

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


class RefereedWorkers(WrappedWorkers):
    """Workers beside which `referees` play the matches of `matchmaker`, one set at a time.

    A set is played by the weights of the request before which it was dealt. It counts before the next round once all of
    its games have been played. While it is played, it is `under_way`: `collect_next(None)` waits for it, and returns an
    empty round.
    """

    def __init__(
        self,
        workers: Workers,
        referees: Workers,
        matchmaker: MatchingMatchmaker,
        budget: FaultBudget,
        times: MatchTimes,
    ) -> None:
        super().__init__(workers)
        self._referees, self._matchmaker, self._budget, self._times = referees, matchmaker, budget, times
        # The set that is being played, and its results by attempt.
        self._set: asyncio.Future[list[Evaluated]] | None = None

    @property
    def under_way(self) -> int:
        return super().under_way + (self._set is not None)

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        await self._before_round(request)
        return await super().collect(request, assign)

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        if request is not None:
            await self._before_round(request)
        elif not super().under_way:
            await self._count()
            return Round(-1, (), ())
        return await super().collect_next(request, assign)

    async def _before_round(self, request: Request) -> None:
        if self._set is not None and self._set.done():
            await self._count()
        if self._set is None:
            began_s = time.perf_counter()
            games = self._matchmaker.matches_due()
            self._times.solve_s += time.perf_counter() - began_s
            if games is not None:
                self._set = asyncio.ensure_future(self._play(replace(games, weights=request.weights)))

    async def _count(self) -> None:
        played, self._set = self._set, None
        if played is None:
            return
        began_s = time.perf_counter()
        results = await played
        self._times.match_s += time.perf_counter() - began_s
        for evaluated in results:
            self._matchmaker.observe_matches(evaluated)
            self._budget.account(evaluated.faults)

    async def _play(self, games: EvaluationRequest) -> list[Evaluated]:
        results: list[Evaluated] = []
        while len(results) < MOST_ATTEMPTS and games.episodes:
            evaluated = await self._referees.evaluate(games)
            results.append(evaluated)
            if evaluated.was_cut:
                break
            games = _unplayed(games, evaluated)
        return results


def _unplayed(games: EvaluationRequest, evaluated: Evaluated) -> EvaluationRequest:
    played = {result.episode for result in evaluated.episodes}
    left = [index for index, number in enumerate(games.episodes) if number not in played]
    matchups = games.matchups or ()
    return replace(
        games, episodes=[games.episodes[index] for index in left], matchups=[matchups[index] for index in left]
    )


class _Referees(WrappedWorkers):
    """Referees that are sent the frozen entries of their matchups."""

    def __init__(self, workers: Workers, dealer: Dealer) -> None:
        super().__init__(workers)
        self._dealer = dealer

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        frozen = self._dealer.frozen_in(request.matchups or (), workers=())
        return await super().evaluate(replace(request, frozen=frozen))


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
