"""Referees: matches during rounds count like matches that rounds wait for, each once, and none is open at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.errors import FaultKind
from marlflow.base.serialization import to_bytes
from marlflow.batches.items import Weights
from marlflow.driver.league import MatchingWorkers, MatchTimes, RefereedWorkers, with_matches
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.payoffs import Payoffs
from marlflow.league.ratings import Ratings
from marlflow.sampling.protocol import EvaluationRequest, Request, Round
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Fault
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import reports
from tests.league.population import NEVER, PAIR, members_of
from tests.league.runs import OFTEN, league_run

RULES = mf.MatchRules(every_env_steps=100, games=12, pairs="live")
MATCHES = mf.MatchRules(every_env_steps=100, games=6)


def league() -> LeagueMatchmaker:
    members = members_of({"main": 2})
    payoffs, ratings = Payoffs(PAIR, ["main"]), Ratings(["main"])
    return LeagueMatchmaker(members, mf.Fictitious(), payoffs, ratings, NEVER, match_rules=RULES)


class Rounds:
    """Workers whose rounds take one turn of the event loop, in which the league sees 50 env steps of games."""

    def __init__(self, matchmaker: LeagueMatchmaker) -> None:
        self.matchmaker, self.under_way = matchmaker, 0

    async def collect(self, request: Request, assign: Any = None) -> Round:
        await asyncio.sleep(0)
        matchup = {"player_0": "main", "player_1": "main@1"}
        returns = {"player_0": 1.0, "player_1": -1.0}
        self.matchmaker.observe([EpisodeResult(0, self.matchmaker.games, 50, returns, matchup=matchup)])
        return Round(request.round, (), ())

    async def collect_next(self, request: Request | None, assign: Any = None) -> Round:
        assert request is not None
        return await self.collect(request)

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        raise AssertionError("rollout workers play no matches")


class Games:
    """Referees: who wins depends on the number of a game; `waits` is called in each call, and `broken` break once."""

    def __init__(self, waits: Callable[[], Awaitable[Any]], broken: Sequence[int] = (), cut: bool = False) -> None:
        self.waits, self.broken, self.cut = waits, set(broken), cut
        self.asked: list[EvaluationRequest] = []
        self.under_way = 0

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        self.asked.append(request)
        await self.waits()
        results, faults = [], []
        for number in request.episodes:
            if number in self.broken:
                self.broken.remove(number)
                faults.append(Fault(FaultKind.ENV_ERRORS, "env", "it broke", "", 0))
                continue
            won = 1.0 if number * 7 % 5 > 1 else -1.0
            results.append(EpisodeResult(0, number, 1, {"player_0": won, "player_1": -won}))
        return Evaluated(tuple(results), tuple(faults), was_cut=self.cut)

    async def collect(self, request: Request, assign: Any = None) -> Round:
        raise AssertionError("referees sample nothing")

    collect_next = collect


class Budget:
    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def faulted(self, fault: Fault) -> None:
        self.faults.append(fault)


def beside(matchmaker: LeagueMatchmaker, games: Games) -> tuple[RefereedWorkers, Budget, MatchTimes]:
    budget, times = Budget(), MatchTimes()
    some: Any = budget
    return RefereedWorkers(Rounds(matchmaker), games, matchmaker, some, times), budget, times


def weights(number: int) -> Request:
    return Request(number, {"main": Weights(number, None)})


async def at_once() -> None:
    pass


def test_rounds_go_on_while_a_set_is_played_and_count_it_once_it_is_whole() -> None:
    async def run() -> None:
        played, matchmaker = asyncio.Event(), league()
        games = Games(played.wait)
        workers, _, times = beside(matchmaker, games)
        for number in range(6):
            await workers.collect(weights(number))
        # Due after 100 env steps, which are two rounds; the next one is not dealt before this one is counted.
        (request,) = games.asked
        assert request.weights == {"main": Weights(2, None)}, "of the round before which it was dealt"
        assert len(request.episodes) == 12
        assert workers.under_way == 1
        assert not matchmaker.matches.payoffs.cells
        played.set()
        await workers.collect(weights(6))
        assert not matchmaker.matches.payoffs.cells, "its last game ended within a round"
        await workers.collect(weights(7))
        assert sum(cell.games for cell in matchmaker.matches.payoffs.cells.values()) == 12
        assert games.asked[1].weights == {"main": Weights(7, None)}
        assert not set(games.asked[1].episodes) & set(request.episodes)
        assert times.match_s < 0.1, "no round waited"

    asyncio.run(run())


def test_a_set_is_waited_for_before_the_run_is_at_rest() -> None:
    async def run() -> None:
        played, matchmaker = asyncio.Event(), league()
        workers, _, _ = beside(matchmaker, Games(played.wait))
        for number in range(3):
            await workers.collect_next(weights(number))
        asyncio.get_running_loop().call_later(0.01, played.set)
        assert workers.under_way == 1
        assert await workers.collect_next(None) == Round(-1, (), ())
        assert workers.under_way == 0
        assert sum(cell.games for cell in matchmaker.matches.payoffs.cells.values()) == 12
        assert matchmaker.matches.due() is None, "a checkpoint has no open games"

    asyncio.run(run())


@settings(deadline=None)
@given(turns=st.lists(st.integers(0, 9), min_size=30, max_size=30), broken=st.sets(st.integers(0, 40), max_size=6))
def test_games_beside_rounds_make_the_table_of_games_that_rounds_wait_for(turns: list[int], broken: set[int]) -> None:
    numbers = [(1 << 41) + number for number in broken]
    some: Any = SimpleNamespace(faulted=lambda fault: None)

    async def run(referees: bool) -> LeagueMatchmaker:
        matchmaker, left = league(), iter(turns * 9)

        async def some_turns() -> None:
            for _ in range(next(left)):
                await asyncio.sleep(0)

        games, rounds = Games(some_turns, numbers), Rounds(matchmaker)
        if not referees:
            waiting = MatchingWorkers(rounds, games, matchmaker, some, MatchTimes())
            while matchmaker.matches.games < games_of_referees:
                await waiting.collect(weights(0))
            return matchmaker
        workers = RefereedWorkers(rounds, games, matchmaker, some, MatchTimes())
        for number in range(30):
            await workers.collect(weights(number))
        while workers.under_way:
            await workers.collect_next(None)
        return matchmaker

    games_of_referees = 0
    found = asyncio.run(run(True))
    games_of_referees = found.matches.games
    expected = asyncio.run(run(False))
    assert games_of_referees > 0
    assert to_bytes(found.matches.state()) == to_bytes(expected.matches.state())
    assert to_bytes(found.ratings.state()) == to_bytes(expected.ratings.state())


def test_games_that_break_are_played_again_before_the_set_counts() -> None:
    async def run() -> None:
        matchmaker = league()
        games = Games(at_once, broken=[1 << 41, (1 << 41) + 5])
        workers, budget, _ = beside(matchmaker, games)
        for number in range(5):
            await workers.collect(weights(number))
        assert [len(request.episodes) for request in games.asked[:2]] == [12, 2]
        assert games.asked[1].weights == games.asked[0].weights
        assert games.asked[1].matchups == [(games.asked[0].matchups or ())[index] for index in (0, 5)]
        assert [fault.kind for fault in budget.faults] == [FaultKind.ENV_ERRORS] * 2
        assert sum(cell.games for cell in matchmaker.matches.payoffs.cells.values()) >= 12
        assert not matchmaker.matches.lost

    asyncio.run(run())


def test_no_game_of_a_set_counts_that_the_deadline_ended_and_the_set_is_asked_for_again() -> None:
    async def run() -> None:
        matchmaker = league()
        workers, _, _ = beside(matchmaker, Games(at_once, cut=True))
        for number in range(6):
            await workers.collect(weights(number))
        await workers.collect_next(None)
        assert not matchmaker.matches.payoffs.cells
        assert matchmaker.matches.due() is None
        assert matchmaker.matches_due() is not None, "a resumed run plays it"

    asyncio.run(run())


def test_games_of_a_member_that_begins_again_do_not_count() -> None:
    async def run() -> None:
        played, matchmaker = asyncio.Event(), league()
        workers, _, _ = beside(matchmaker, Games(played.wait))
        for number in range(3):
            await workers.collect(weights(number))
        matchmaker.matches.reset("main", 0)
        played.set()
        await workers.collect_next(None)
        assert not matchmaker.matches.payoffs.cells, "all of these pairs have the live member"
        assert not matchmaker.matches.lost
        assert matchmaker.matches.due() is None

    asyncio.run(run())


def test_an_error_in_a_set_ends_the_run_at_the_next_round() -> None:
    async def breaks() -> None:
        raise mf.EnvironmentFailed("env 0", "it broke", "")

    async def run() -> None:
        workers, _, _ = beside(league(), Games(breaks))
        for number in range(9):
            await workers.collect(weights(number))

    with pytest.raises(mf.EnvironmentFailed):
        asyncio.run(run())


def test_a_meta_game_waits_for_its_referees() -> None:
    anything: Any = SimpleNamespace(matchmaker=league(), frozen_in=lambda matchups, workers: {})
    workers, referees = Rounds(anything.matchmaker), Games(at_once)
    budget: Any = Budget()
    waiting = with_matches(workers, referees, anything, True, budget, MatchTimes())
    assert isinstance(waiting, MatchingWorkers)
    assert isinstance(with_matches(workers, referees, anything, False, budget, MatchTimes()), RefereedWorkers)
    for number in range(3):
        asyncio.run(waiting.collect(weights(number)))
    assert sum(cell.games for cell in anything.matchmaker.matches.payoffs.cells.values()) == 12


def test_in_one_process_referees_play_what_rollout_workers_would(tmp_path: Path) -> None:
    def run(workers: int) -> Any:
        with_referees = mf.League(mf.PFSP(), snapshots=OFTEN, matches=replace(MATCHES, workers=workers))
        return league_run(with_referees, 864, checkpoint=mf.CheckpointConfig(every_env_steps=200))

    mf.train(run(0), tmp_path / "plain")
    resumed, plain = resumes_exactly(run(2), tmp_path, 432), kept(tmp_path / "plain")
    assert plain["driver"]["dealer"]["matchmaker"]["matches"]["next"] >= 24
    assert_equal(without_times(reports(resumed.whole)), without_times(reports(tmp_path / "plain")))
    assert_equal(resumed.trees, plain)
