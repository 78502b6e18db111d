"""Matches: which profiles play how often, and that each game counts once."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.errors import FaultKind
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.checks.validation import ready
from marlflow.config.league import dealer_of
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.matches import FIRST_MATCH, Matches, all_profiles, play_matches, until_known
from marlflow.league.members import Members
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.sides import default_sides
from marlflow.policy.actor import mode_in
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Fault
from tests.league.population import NEVER, PAIR, members_of
from tests.league.runs import MAIN, league_run
from tests.runtime.small_runs import SMALL, SMALL_DQN

TAG = default_sides(["adversary_0", "adversary_1", "agent_0"])
TAG_FITS = {"hunter": ["adversary_0", "adversary_1"], "prey": ["agent_0"]}
THREE = default_sides(["player_0", "player_1", "player_2"])
WON, LOST = {"player_0": 1.0, "player_1": -1.0}, {"player_0": -1.0, "player_1": 1.0}


def matches_of(live: Sequence[str] = ("main",)) -> Matches:
    return Matches(Payoffs(PAIR, live), Ratings(live))


def result(number: int, returns: dict[str, float] | None = None) -> EpisodeResult:
    return EpisodeResult(0, number, 1, returns or WON)


def play_all(matches: Matches, returns: Callable[[int], dict[str, float]] = lambda number: WON) -> None:
    while (batch := matches.due()) is not None:
        matches.observe(Evaluated(tuple(result(number, returns(number)) for number in batch.episodes)))


def test_profiles_play_until_they_have_their_games() -> None:
    matches = matches_of()
    profiles = all_profiles([["main", "main@1"], ["random"]])
    assert profiles == [("main", "random"), ("main@1", "random")]
    matches.payoffs.add(Game(profiles[0], (1.0, -1.0), 1))
    assert until_known(profiles, matches, games=3) == {profiles[0]: 2, profiles[1]: 3}
    matches.lost[profiles[0]] = 2
    assert until_known(profiles, matches, games=3) == {profiles[1]: 3}, "games that were lost are not asked for again"


def test_profiles_play_until_their_standard_error_is_small_enough() -> None:
    matches, profile = matches_of(live=()), ("main@1", "main@2")
    assert until_known([profile], matches, 500, payoff_se=0.1) == {profile: 20}
    for value in [1.0, -1.0] * 10:
        matches.payoffs.add(Game(profile, (value, -value), 1))
    # A variance of 20 / 19 needs 105.3 games for a standard error of 0.1.
    assert until_known([profile], matches, 500, payoff_se=0.1) == {profile: 86}
    assert until_known([profile], matches, 50, payoff_se=0.1) == {profile: 30}
    for value in [1.0, -1.0] * 40:
        matches.payoffs.add(Game(profile, (value, -value), 1))
    assert matches.payoffs.returns(profile)[1] == pytest.approx([99**-0.5, 99**-0.5])
    assert until_known([profile], matches, 500, payoff_se=0.1006) == {}
    same = ("main@2", "main@1")
    for _ in range(20):
        matches.payoffs.add(Game(same, (1.0, -1.0), 1))
    assert until_known([same], matches, 500, payoff_se=0.1) == {}


def test_orders_of_interchangeable_sides_have_their_games_together() -> None:
    matches = Matches(Payoffs(PAIR, symmetric=True), Ratings())
    profiles = all_profiles([["a", "b"]] * 2)
    assert until_known(profiles, matches, games=5) == {("a", "a"): 5, ("a", "b"): 3, ("b", "a"): 3, ("b", "b"): 5}
    matches.request({("a", "b"): 1, ("b", "a"): 2})
    play_all(matches)
    assert list(matches.payoffs.cells) == [("a", "b")]
    # The first player won each game: b twice, a once.
    assert matches.payoffs.returns(("a", "b"))[0] == pytest.approx([-1 / 3, 1 / 3])
    assert until_known(profiles[1:3], matches, games=5) == {("a", "b"): 1, ("b", "a"): 1}
    matches.lost[("b", "a")] = 2
    assert until_known(profiles[1:3], matches, games=5) == {}


def test_equal_members_have_equal_ratings_though_one_seat_is_better() -> None:
    """The first seat wins four of five games, whoever has it; a rating follows the latest games most."""
    matches, copies = matches_of(live=()), ["one", "other"]
    matches.request({("one", "other"): 500, ("other", "one"): 500})
    wins = np.random.default_rng(0).permutation(np.repeat([True, False], [800, 200]))
    play_all(matches, lambda number: WON if wins[number - FIRST_MATCH] else LOST)
    one, other = (matches.ratings[name] for name in copies)
    assert abs(one.mu - other.mu) < 2 * np.hypot(one.sigma, other.sigma)
    assert matches.payoffs.returns(("one", "other"))[0][0] == pytest.approx(np.where(wins[:500], 1, -1).mean())


def test_an_outcome_decides_wins_and_ratings_and_not_returns() -> None:
    def first_loses(result: EpisodeResult, sides: Any) -> dict[str, float]:
        assert sides == {"player_0": ["player_0"], "player_1": ["player_1"]}
        return {"player_1": 5.0, "player_0": 4.0}

    matches = Matches(Payoffs(PAIR, symmetric=True), Ratings(), outcome=first_loses)
    matches.request({("z", "a"): 3})
    play_all(matches)
    assert matches.payoffs.returns(("z", "a"))[0].tolist() == [1.0, -1.0]
    assert matches.payoffs.win_probability("a", "z") > 0.5
    assert matches.ratings["a"].mu > 25.0 > matches.ratings["z"].mu


def test_all_games_are_one_batch_and_share_a_matchup_by_profile() -> None:
    matches = matches_of()
    matches.request({("main", "random"): 2, ("main", "main@1"): 1})
    batch = matches.due()
    assert batch is not None
    assert batch.episodes == (FIRST_MATCH, FIRST_MATCH + 1, FIRST_MATCH + 2)
    assert [matchup["player_1"] for matchup in batch.matchups] == ["random", "random", "main@1"]
    assert batch.matchups[0] is batch.matchups[1]
    assert batch.mode == "sampled"
    with pytest.raises(RuntimeError, match="earlier ones are not played"):
        matches.request({("main", "random"): 1})


def test_numbers_are_never_used_twice() -> None:
    matches, seen = matches_of(), []
    for _ in range(3):
        matches.request({("main", "random"): 4})
        batch = matches.due()
        assert batch is not None
        seen += batch.episodes
        play_all(matches)
    assert seen == list(range(FIRST_MATCH, FIRST_MATCH + 12))


@given(st.lists(st.tuples(st.sets(st.integers(0, 9)), st.integers(0, 3)), min_size=3, max_size=3), st.randoms())
def test_each_game_counts_once_and_missing_ones_are_asked_for_twice_more(
    answers: list[tuple[set[int], int]], shuffler: Any
) -> None:
    matches, expected, counted = matches_of(), matches_of(), set()
    profiles = [("main", "random"), ("main@1", "main")]
    matches.request(dict.fromkeys(profiles, 5))
    asked = 0
    for broken, repeated in answers:
        batch = matches.due()
        if batch is None:
            break
        asked += 1
        numbers = [number for number in batch.episodes if number - FIRST_MATCH not in broken]
        # Repeated and unknown numbers change nothing.
        answered = numbers + numbers[:repeated] + sorted(counted)[:repeated] + [3, FIRST_MATCH + 10]
        shuffler.shuffle(answered)
        matches.observe(Evaluated(tuple(result(number, WON if number % 3 else LOST) for number in answered)))
        for number in numbers:
            value = 1.0 if number % 3 else -1.0
            expected.payoffs.add(Game(profiles[(number - FIRST_MATCH) // 5], (value, -value), 1))
        counted |= set(numbers)
    assert matches.due() is None
    assert matches.payoffs.cells == expected.payoffs.cells
    assert sum(matches.lost.values()) == 10 - len(counted)
    assert asked == 3 or len(counted) == 10


def test_the_table_does_not_depend_on_the_order_of_results() -> None:
    tables = []
    for seed in range(3):
        matches = matches_of()
        matches.request({("main", "random"): 40})
        batch = matches.due()
        assert batch is not None
        order = np.random.default_rng(seed).permutation(batch.episodes).tolist()
        matches.observe(Evaluated(tuple(result(number, WON if number % 3 else LOST) for number in order)))
        tables.append(to_bytes([matches.state(), matches.ratings.state()]))
    assert tables[0] == tables[1] == tables[2]


def test_games_of_live_members_decay_and_others_do_not() -> None:
    matches = matches_of()
    matches.request({("main", "random"): 100, ("main@1", "random"): 100})
    play_all(matches)
    cells = matches.payoffs.cells
    assert cells["main@1", "random"].roles[0].weight == 100.0
    assert cells["main", "random"].roles[0].weight == pytest.approx((1 - 0.99**100) / (1 - 0.99))


def test_a_batch_that_the_deadline_ended_is_not_counted() -> None:
    matches = matches_of()
    matches.request({("main", "random"): 3})
    matches.observe(Evaluated((result(FIRST_MATCH),), was_cut=True))
    assert not matches.payoffs.cells
    assert not matches.lost
    assert matches.due() is None


def test_ratings_count_each_match() -> None:
    matches, alone = matches_of(), Ratings(["main"])
    matches.request({("main", "random"): 1, ("random", "main"): 1, ("main", "main"): 1})
    play_all(matches)
    alone.add([["main"], ["random"]], [1.0, -1.0])
    alone.add([["random"], ["main"]], [1.0, -1.0])
    assert matches.ratings.state() == alone.state()
    assert matches.payoffs.cells["main", "main"].games == 1


def test_sides_are_ranked_by_the_mean_return_of_their_roles() -> None:
    matches = Matches(Payoffs(TAG), Ratings())
    matches.request({("hunter@1", "prey@1"): 1})
    matches.observe(
        Evaluated((EpisodeResult(0, FIRST_MATCH, 7, {"adversary_0": 3.0, "adversary_1": -1.0, "agent_0": 0.5}),))
    )
    assert [role.mean for role in matches.payoffs.cells["hunter@1", "prey@1"].roles] == [1.0, 0.5]
    assert matches.ratings["hunter@1"].mu > 25.0 > matches.ratings["prey@1"].mu


def test_an_agent_that_never_appeared_has_no_return() -> None:
    matches = matches_of()
    matches.request({("main", "random"): 1})
    matches.observe(Evaluated((EpisodeResult(0, FIRST_MATCH, 1, {"player_0": 1.0}),)))
    assert [role.mean for role in matches.payoffs.cells["main", "random"].roles] == [1.0, 0.0]


def test_a_reset_forgets_the_matches_of_a_live_member() -> None:
    matches = matches_of()
    matches.request({("main", "random"): 2, ("main@1", "random"): 2})
    matches.lost["main", "random"] = 1
    play_all(matches)
    matches.reset("main", 0)
    assert list(matches.payoffs.cells) == [("main@1", "random")]
    assert (matches.ratings["main"], matches.lost) == (Ratings()["main"], {})


def test_state_through_bytes_is_equal() -> None:
    matches, other = matches_of(), matches_of()
    matches.request({("main", "random"): 5})
    batch = matches.due()
    assert batch is not None
    for _ in range(3):
        matches.observe(Evaluated((result(FIRST_MATCH + 1),)))
    other.load_state(from_bytes(to_bytes(matches.state())))
    assert to_bytes(other.state()) == to_bytes(matches.state())
    assert other.lost == {("main", "random"): 4}
    assert other.games == 5


class Playing:
    """Workers whose first player wins; the games in `broken` break in this many of their attempts."""

    def __init__(self, broken: dict[int, int] | None = None, cut_after: int = 9) -> None:
        self.broken, self.calls, self.cut_after = dict(broken or {}), [], cut_after

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        self.calls.append(list(request.episodes))
        results, faults = [], []
        for number in request.episodes:
            if self.broken.get(number, 0):
                self.broken[number] -= 1
                faults.append(Fault(FaultKind.ENV_ERRORS, "env", "it broke", "", 0))
            else:
                results.append(result(number))
        return Evaluated(tuple(results), tuple(faults), was_cut=len(self.calls) > self.cut_after)


def matchmaker_of(match_rules: mf.MatchRules, snapshots: mf.SnapshotRules = NEVER) -> LeagueMatchmaker:
    members = members_of({"main": 2})
    return LeagueMatchmaker(
        members, mf.Fictitious(), Payoffs(PAIR, ["main"]), Ratings(["main"]), snapshots, match_rules=match_rules
    )


def train(matchmaker: LeagueMatchmaker, env_steps: int) -> None:
    matchup = {"player_0": "main", "player_1": "main@1"}
    matchmaker.observe([EpisodeResult(0, matchmaker.games, env_steps, WON, matchup=matchup)])


def test_a_league_plays_matches_every_so_many_env_steps() -> None:
    matchmaker, workers = matchmaker_of(mf.MatchRules(every_env_steps=100, games=12, pairs="live")), Playing()
    rounds = []
    for _ in range(7):
        asyncio.run(play_matches(matchmaker, workers, {}))
        rounds.append(len(workers.calls))
        train(matchmaker, 50)
    assert rounds == [0, 0, 1, 1, 2, 2, 3]
    counts = Counter(frozenset(profile) for profile in matchmaker.matches.payoffs.cells for _ in range(6))
    assert counts == {frozenset({"main", rival}): 12 for rival in ("main@1", "main@2", "random")}
    assert {cell.games for cell in matchmaker.matches.payoffs.cells.values()} == {6}
    assert matchmaker.ratings["random"].mu != 25.0
    training = matchmaker.payoffs.cells
    assert list(training) == [("main", "main@1")], "matches are not training games"


def test_matches_that_the_end_of_a_run_cut_are_played_by_the_resumed_run() -> None:
    rules = mf.MatchRules(every_env_steps=100, games=12, pairs="live")
    matchmaker, resumed = matchmaker_of(rules), matchmaker_of(rules)
    train(matchmaker, 100)
    cut, workers = Playing(cut_after=0), Playing()
    asyncio.run(play_matches(matchmaker, cut, {}))
    assert len(cut.calls) == 1
    assert not matchmaker.matches.payoffs.cells
    resumed.load_state(from_bytes(to_bytes(matchmaker.state())))
    rounds = []
    for _ in range(3):
        asyncio.run(play_matches(resumed, workers, {}))
        rounds.append(len(workers.calls))
        train(resumed, 50)
    assert rounds == [1, 1, 2], "at once, and then as often as before"
    assert {len(games) for games in workers.calls} == {len(cut.calls[0])}
    assert not set(cut.calls[0]) & set(workers.calls[0]), "no game has the seeds of one that was cut"


def test_the_best_snapshots_are_chosen_again_after_matches() -> None:
    agents, rules = ["player_0", "player_1"], mf.SnapshotRules(every_agent_steps=100)
    members = Members(PAIR, {"main": agents, "random": agents}, ["main"], best=1)
    matchmaker = LeagueMatchmaker(
        members, mf.Fictitious(), Payoffs(PAIR, ["main"]), Ratings(["main"]), rules, match_rules=mf.MatchRules(100, 12)
    )

    class OfTheFirst(Playing):
        """The first snapshot wins all of its games, or loses them; others are draws."""

        wins = False

        async def evaluate(self, request: EvaluationRequest) -> Evaluated:
            matchups = request.matchups or ()
            won = [WON if (matchup["player_0"] == "main@1") == self.wins else LOST for matchup in matchups]
            drawn = [returns if "main@1" in m.values() else {} for returns, m in zip(won, matchups, strict=True)]
            return Evaluated(tuple(result(n, returns) for n, returns in zip(request.episodes, drawn, strict=True)))

    workers, dealt = OfTheFirst(), []
    for steps in range(1, 8):
        workers.wins = steps > 2
        matchmaker.change_population({"main": steps}, {"main": 100 * steps})
        train(matchmaker, 100)
        asyncio.run(play_matches(matchmaker, workers, {}))
        dealt += members.past_in(0)
    # While it loses a later one is better, and once it wins it is the best again.
    assert (dealt[0], dealt[1], dealt[-1]) == ("main@1", "main@2", "main@1"), dealt


def test_matches_can_be_turned_off() -> None:
    matchmaker = matchmaker_of(mf.MatchRules(every_env_steps=None))
    train(matchmaker, 10**9)
    assert matchmaker.matches_due() is None


@pytest.mark.parametrize(("acts", "main", "values"), [("auto", "sampled", "greedy"), ("greedy", "greedy", "greedy")])
def test_members_act_in_matches_as_they_learn_to_or_greedily(acts: Any, main: str, values: str) -> None:
    league = mf.League(mf.Fictitious(), snapshots=mf.SnapshotRules(acts=acts), matches=mf.MatchRules(every_env_steps=1))
    run = league_run(league, 100, policies={"main": MAIN, "values": mf.Policy(SMALL_DQN, SMALL)})
    dealer = dealer_of(ready(run))
    assert dealer is not None
    matchmaker: Any = dealer.matchmaker
    matchmaker.matches.request({("main@1", "values"): 1})
    batch = matchmaker.matches.due()
    assert [mode_in(batch.mode, entry, entry.partition("@")[0]) for entry in ("main@1", "values")] == [main, values]


def test_broken_games_are_played_again_and_their_faults_returned() -> None:
    matchmaker = matchmaker_of(mf.MatchRules(every_env_steps=1, games=6))
    train(matchmaker, 1)
    workers = Playing({FIRST_MATCH + 1: 1, FIRST_MATCH + 2: 9})
    faults = asyncio.run(play_matches(matchmaker, workers, {}))  # type: ignore[arg-type]
    numbers = [FIRST_MATCH + number for number in range(6)]
    assert workers.calls == [numbers, [numbers[1], numbers[2]], [numbers[2]]]
    assert len(faults) == 4
    assert sum(cell.games for cell in matchmaker.matches.payoffs.cells.values()) == 5
    assert list(matchmaker.matches.lost.values()) == [1]


def test_a_passed_deadline_ends_matches() -> None:
    matchmaker, workers = matchmaker_of(mf.MatchRules(every_env_steps=1, games=6)), Playing(cut_after=0)
    train(matchmaker, 1)
    asyncio.run(play_matches(matchmaker, workers, {}))  # type: ignore[arg-type]
    assert len(workers.calls) == 1
    assert not matchmaker.matches.payoffs.cells


def test_a_run_that_is_resumed_with_a_shorter_interval_plays_matches_sooner() -> None:
    before, then = (matchmaker_of(mf.MatchRules(every_env_steps=every, games=12, pairs="live")) for every in (500, 100))
    train(before, 150)
    then.load_state(from_bytes(to_bytes(before.state())))
    workers, rounds = Playing(), []
    for _ in range(3):
        asyncio.run(play_matches(then, workers, {}))
        rounds.append(len(workers.calls))
        train(then, 50)
    assert rounds == [0, 0, 1]
