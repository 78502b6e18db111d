"""The league's matchmaker: deals, seats, teammates, counted games, and when it takes snapshots."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.league.dealing import LeagueMatchmaker, LiveSeat, seats_of
from marlflow.league.sides import default_sides, sides_of
from marlflow.sampling.receipts import EpisodeResult
from tests.league.population import PAIR, agents_of, agree, matchmaker_of, members_of

THREE = default_sides(["player_0", "player_1", "player_2"])
TAG = default_sides(["adversary_0", "adversary_1", "agent_0"])
TAG_FITS = {"hunter": ["adversary_0", "adversary_1"], "prey": ["agent_0"]}
TEAMS, _ = sides_of(
    {"red": [["red_0"], ["red_1"]], "blue": [["blue_0"], ["blue_1"]]}, ["red_0", "red_1", "blue_0", "blue_1"]
)


def deal(matchmaker: LeagueMatchmaker, count: int, env: int = 0, first: int = 0) -> list[dict[str, str]]:
    agents = agents_of(matchmaker.members.sides)
    episodes = range(first, first + count)
    return [matchmaker(mf.EpisodeId(env, i), agents, np.random.default_rng([11, i])) for i in episodes]


def result(matchup: dict[str, str], returns: dict[str, float], env_steps: int = 10) -> EpisodeResult:
    return EpisodeResult(0, 0, env_steps, returns, matchup=matchup)


def versus(first: str, second: str, difference: float = 1.0, episode: int = 0, **where: int) -> EpisodeResult:
    returns = {"player_0": difference, "player_1": -difference}
    matchup = {"player_0": first, "player_1": second}
    return EpisodeResult(where.get("env", 0), episode, 10, returns, tick=where.get("tick", 0), matchup=matchup)


def test_it_is_a_matchmaker_with_state_and_a_population() -> None:
    matchmaker = matchmaker_of(members_of({"main": 1}))
    assert isinstance(matchmaker, mf.Matchmaker)


def test_seats_are_live_policies_in_the_roles_that_they_can_play() -> None:
    members = members_of({"hunter": 1, "prey": 1, "any": 0}, TAG, TAG_FITS)
    expected = [LiveSeat("hunter", 0), LiveSeat("prey", 1), LiveSeat("any", 0), LiveSeat("any", 1)]
    assert seats_of(members, {}) == expected
    assert seats_of(members, {"any": 0.0}) == expected[:2]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1),
    st.sampled_from([PAIR, THREE, TEAMS]),
    st.integers(1, 60),
)
def test_games_and_seats_are_balanced_to_one_game(shares: dict[str, float], sides: object, games: int) -> None:
    matchmaker = matchmaker_of(members_of(dict.fromkeys(shares, 0), sides), mf.NaiveSelfPlay(), shares=shares)  # type: ignore[arg-type]
    counts: Counter[LiveSeat] = Counter()
    for episode in range(games):
        seat = matchmaker._next_seat(mf.EpisodeId(0, episode), np.random.default_rng(0))
        counts[seat] += 1
        for policy, share in shares.items():
            own = [counts[LiveSeat(policy, role)] for role in range(len(sides.roles))]  # type: ignore[attr-defined]
            assert max(own) - min(own) <= 1
            due = (episode + 1) * share / sum(shares.values())
            assert abs(sum(own) - due) <= 1.0 + 1e-9


@pytest.mark.parametrize(("share", "games"), [(1.0, (100, 100)), (2.0, (133, 67)), (0.0, (0, 200))])
def test_policies_have_games_by_their_shares_even_where_one_can_play_more_roles(
    share: float, games: tuple[int, int]
) -> None:
    members = members_of({"any": 1, "prey": 1}, TAG, {"prey": ["agent_0"]})
    matchmaker = matchmaker_of(members, shares={"any": share})
    deals = Counter(matchmaker._next_seat(mf.EpisodeId(0, i), np.random.default_rng(0)).policy for i in range(200))
    assert (deals["any"], deals["prey"]) == games


@pytest.mark.parametrize(
    ("before", "after", "games"),
    [
        ({"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 1.0}, (75, 25)),
        ({"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0}, (50, 50)),
        ({"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, (50, 50)),
    ],
)
def test_shares_that_a_resumed_run_changes_hold_from_then_on(
    before: dict[str, float], after: dict[str, float], games: tuple[int, int]
) -> None:
    def resumed(tree: object, shares: dict[str, float]) -> LeagueMatchmaker:
        matchmaker = matchmaker_of(members_of({"a": 0, "b": 0}), mf.NaiveSelfPlay(), shares=shares)
        matchmaker.load_state(tree)
        return matchmaker

    def seats(matchmaker: LeagueMatchmaker, first: int, count: int) -> list[LiveSeat]:
        episodes = (mf.EpisodeId(0, number) for number in range(first, first + count))
        return [matchmaker._next_seat(episode, np.random.default_rng(0)) for episode in episodes]

    first = matchmaker_of(members_of({"a": 0, "b": 0}), mf.NaiveSelfPlay(), shares=before)
    seats(first, 0, 1001)
    state = from_bytes(to_bytes(first.state()))
    counts = Counter(seat.policy for seat in seats(resumed(state, after), 1001, 100))
    assert (counts["a"], counts["b"]) == games
    # With the shares of before, it goes on as it would have.
    assert seats(resumed(state, before), 1001, 20) == seats(first, 1001, 20)


def test_one_policy_against_its_past_has_each_seat_in_turn() -> None:
    dealt = deal(matchmaker_of(members_of({"main": 3})), 40)
    assert [matchup["player_0"] == "main" for matchup in dealt] == [True, False] * 20


def test_frequencies_are_those_of_the_mode() -> None:
    dealt = deal(matchmaker_of(members_of({"main": 4})), 4000)
    rivals = Counter(name for matchup in dealt for name in matchup.values() if name != "main")
    assert sum(rivals.values()) == 4000
    assert agree(rivals, {f"main@{number}": 0.25 for number in range(1, 5)})


def test_the_same_generators_deal_the_same() -> None:
    one, other = (deal(matchmaker_of(members_of({"main": 9})), 50) for _ in range(2))
    assert one == other


def test_every_seat_of_a_free_for_all_is_dealt_by_itself() -> None:
    dealt = deal(matchmaker_of(members_of({"main": 3}, THREE), mf.PFSP(past=1.0)), 3000)
    seated = Counter(tuple(matchup.values()) for matchup in dealt if matchup["player_0"] == "main")
    pairs = {("main", f"main@{a}", f"main@{b}"): 1 / 9 for a in (1, 2, 3) for b in (1, 2, 3)}
    assert sum(seated.values()) == 1000
    assert agree(seated, pairs)


def test_a_member_plays_all_agents_of_its_role() -> None:
    for matchup in deal(matchmaker_of(members_of({"hunter": 2, "prey": 2}, TAG, TAG_FITS)), 20):
        assert matchup["adversary_0"] == matchup["adversary_1"]
        assert {matchup["adversary_0"], matchup["agent_0"]} & {"hunter", "prey"}
        assert matchup["adversary_0"].startswith("hunter")
        assert matchup["agent_0"].startswith("prey")


def teammates_of(kind: str) -> Counter[str]:
    matchmaker = matchmaker_of(members_of({"main": 2}, TEAMS), mf.Fictitious(), teammates=kind)  # type: ignore[arg-type]
    dealt_first = deal(matchmaker, 4000)[::4]
    assert all(matchup["red_0"] == "main" for matchup in dealt_first)
    assert all("@" in matchup["blue_0"] and "@" in matchup["blue_1"] for matchup in dealt_first)
    return Counter(matchup["red_1"] for matchup in dealt_first)


def test_teammates_are_as_configured() -> None:
    assert teammates_of("self") == {"main": 1000}
    assert agree(teammates_of("past"), {"main@1": 0.5, "main@2": 0.5})
    assert agree(teammates_of("population"), dict.fromkeys(["main", "main@1", "main@2", "random"], 0.25))


def test_without_snapshots_teammates_are_live() -> None:
    matchmaker = matchmaker_of(members_of({"main": 0}, TEAMS), teammates="past")
    assert all(set(matchup.values()) == {"main"} for matchup in deal(matchmaker, 8))


def test_without_a_live_policy_for_a_role_a_fixed_one_plays_it() -> None:
    members = members_of({"hunter": 0}, TAG, {"hunter": ["adversary_0", "adversary_1"]})
    (matchup,) = deal(matchmaker_of(members), 1)
    assert matchup == {"adversary_0": "hunter", "adversary_1": "hunter", "agent_0": "random"}


def test_trials_and_evaluation_count_for_no_share() -> None:
    matchmaker = matchmaker_of(members_of({"main": 2}))
    before = to_bytes(matchmaker.state())
    seats = Counter(matchup["player_0"] == "main" for env in (-1, -2) for matchup in deal(matchmaker, 100, env))
    assert to_bytes(matchmaker.state()) == before
    assert min(seats.values()) > 50


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_episodes_that_are_dealt_again_do_not_count_twice(rounds: list[tuple[int, int]]) -> None:
    """Three environments; in each round episodes are dealt ahead, some of them end, and the others are dealt again."""
    matchmaker = matchmaker_of(members_of({"main": 1, "other": 1}))
    ended: list[LiveSeat] = []
    first = 0
    for dealt, most_played in rounds:
        seated: dict[tuple[int, int], LiveSeat] = {}
        for env in range(3):
            for episode in range(first, first + dealt):
                seated[env, episode] = matchmaker._next_seat(mf.EpisodeId(env, episode), np.random.default_rng(0))
        played = min(most_played, dealt)
        for episode in range(first, first + played):
            for env in range(3):
                ended.append(seated[env, episode])
                matchmaker.observe([replace(versus("main", "other"), env=env, episode=episode)])
        first += played
    deals = Counter(ended)
    for seat, count in matchmaker._deals.items():
        ahead = [one for of_env in matchmaker._open.values() for one in of_env.values()]
        assert count == deals[seat] + ahead.count(seat)


def test_games_are_counted_by_the_mean_return_of_each_role() -> None:
    matchmaker = matchmaker_of(members_of({"hunter": 0, "prey": 0}, TAG, TAG_FITS))
    matchup = {"adversary_0": "hunter", "adversary_1": "hunter", "agent_0": "prey"}
    matchmaker.observe([result(matchup, {"adversary_0": 3.0, "adversary_1": 1.0, "agent_0": -3.0}, env_steps=25)])
    cell = matchmaker.payoffs.cells["hunter", "prey"]
    assert [role.mean for role in cell.roles] == [2.0, -3.0]
    assert (matchmaker.games, cell.env_steps) == (1, 25)
    assert matchmaker.payoffs.win_probability("hunter", "prey") == 0.6


def test_an_agent_that_never_had_its_turn_has_a_return_of_0() -> None:
    matchmaker = matchmaker_of(members_of({"main": 1}))
    matchmaker.observe([result({"player_0": "main", "player_1": "main@1"}, {"player_0": -1.0})])
    assert [role.mean for role in matchmaker.payoffs.cells["main", "main@1"].roles] == [-1.0, 0.0]


def test_the_initial_policies_are_frozen_first_and_then_by_agent_steps() -> None:
    matchmaker = matchmaker_of(members_of({"main": 0, "other": 0}), rules=mf.SnapshotRules(every_agent_steps=100))

    def change(version: int, main: int, other: int) -> dict[str, str]:
        changed = matchmaker.change_population({"main": version, "other": version}, {"main": main, "other": other})
        assert not changed.forget
        return dict(changed.freeze)

    assert change(0, 0, 0) == {"main@1": "main", "other@1": "other"}
    assert change(1, 99, 0) == {}
    matchmaker.observe([versus("main", "other")])
    assert change(4, 120, 60) == {"main@2": "main"}
    assert change(5, 219, 100) == {"other@2": "other"}
    assert matchmaker.epoch == 3
    taken = matchmaker.members.snapshots["main@2"]
    assert (taken.version, taken.agent_steps, taken.env_steps) == (4, 120, 10)


def test_nothing_due_changes_nothing() -> None:
    matchmaker = matchmaker_of(members_of({"main": 1}))
    assert matchmaker.change_population({"main": 3}, {"main": 10**9}) == mf.PopulationChange()
    assert matchmaker.epoch == 0


def test_a_snapshot_has_the_rating_of_its_policy() -> None:
    matchmaker = matchmaker_of(members_of({"main": 0}), rules=mf.SnapshotRules())
    matchmaker.ratings.add([["main"], ["random"]], [1.0, 0.0])
    matchmaker.change_population({"main": 0}, {"main": 0})
    assert matchmaker.ratings["main@1"] == matchmaker.ratings["main"]


def test_a_policy_has_to_beat_the_snapshots_that_it_can_meet() -> None:
    rules = mf.SnapshotRules(at_start=False, every_agent_steps=None, win_rate=0.5, min_games=1)
    matchmaker = matchmaker_of(members_of({"hunter": 1, "prey": 1}, TAG, TAG_FITS), rules=rules)
    matchup = {"adversary_0": "hunter", "adversary_1": "hunter", "agent_0": "prey@1"}
    matchmaker.observe([result(matchup, {"adversary_0": 1.0, "adversary_1": 1.0, "agent_0": -1.0})])
    versions, steps = {"hunter": 1, "prey": 1}, {"hunter": 2, "prey": 1}
    assert matchmaker.change_population(versions, steps).freeze == {"hunter@2": "hunter"}


def test_state_through_bytes_continues_the_same() -> None:
    def fresh() -> LeagueMatchmaker:
        return matchmaker_of(members_of({"main": 0, "other": 0}), mf.PFSP(), mf.SnapshotRules(every_agent_steps=50))

    def play(matchmaker: LeagueMatchmaker, rounds: range) -> list[object]:
        made: list[object] = []
        for number in rounds:
            steps = {"main": 30 * number, "other": 20 * number}
            made.append(matchmaker.change_population({"main": number, "other": number}, steps))
            dealt = deal(matchmaker, 7, first=7 * number)
            outcomes = np.random.default_rng(number).integers(-1, 2, len(dealt))
            results = zip(dealt, outcomes, range(7 * number, 7 * number + 7), strict=True)
            matchmaker.observe([versus(*m.values(), float(o), episode) for m, o, episode in results])
            made.append(dealt)
        return made

    straight, stopped, resumed = fresh(), fresh(), fresh()
    expected = play(straight, range(12))
    before = play(stopped, range(5))
    resumed.load_state(from_bytes(to_bytes(stopped.state())))
    assert [*before, *play(resumed, range(5, 12))] == expected
    assert to_bytes(resumed.state()) == to_bytes(straight.state())
    assert len(straight.members.snapshots) > 4
