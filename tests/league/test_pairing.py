"""Pairing: who plays matches next, and that payoffs among some members become known completely."""

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from marlflow.league.league import MatchRules
from marlflow.league.members import Members
from marlflow.league.pairing import fewest_first, next_matches, pairings
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.sides import default_sides
from marlflow.league.standings import meta_weights
from tests.league.population import PAIR, members_of

TAG = default_sides(["adversary_0", "adversary_1", "agent_0"])
TAG_FITS = {"hunter": ["adversary_0", "adversary_1"], "prey": ["agent_0"]}
THREE = default_sides(["player_0", "player_1", "player_2"])


def test_live_policies_meet_everybody_and_snapshots_no_snapshots() -> None:
    members = members_of({"main": 2})
    met = [set(group[0]) for group in pairings(members)]
    assert met == [{"main", "main@1"}, {"main", "main@2"}, {"main", "random"}]
    assert [set(group[0]) for group in pairings(members, "frozen")] == [
        {"main@1", "main@2"},
        {"main@1", "random"},
        {"main@2", "random"},
    ]


def test_a_pair_has_all_seatings_that_fit_or_one() -> None:
    assert pairings(members_of({"main": 1}))[0] == [("main", "main@1"), ("main@1", "main")]
    assert pairings(members_of({"main": 1}), mirrored=False)[0] == [("main", "main@1")]
    # The member that plays one side alone, and the member that plays all others.
    assert pairings(members_of({"main": 1}, THREE))[0] == [
        ("main", "main@1", "main@1"),
        ("main@1", "main", "main"),
        ("main@1", "main", "main@1"),
        ("main", "main@1", "main"),
        ("main@1", "main@1", "main"),
        ("main", "main", "main@1"),
    ]


def test_members_play_only_roles_that_they_fit() -> None:
    members = members_of({"hunter": 1, "prey": 1}, TAG, TAG_FITS)
    groups = [*pairings(members), *pairings(members, "frozen")]
    assert [group for group in groups if "random" not in group[0]] == [
        [("hunter", "prey")],
        [("hunter", "prey@1")],
        [("hunter@1", "prey")],
        [("hunter@1", "prey@1")],
    ]
    assert [("random", "prey@1")] in groups
    assert all(len(group) == 1 for group in groups)


def test_a_role_that_neither_of_a_pair_can_play_is_filled() -> None:
    sides = default_sides(["red_0", "green_0", "blue_0"])
    members = Members(sides, {"a": ["red_0"], "b": ["green_0"], "c": ["blue_0"]}, live=["a", "b", "c"])
    assert pairings(members) == [[("a", "b", "c")]] * 3


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.lists(st.integers(0, 9), min_size=6), st.integers(3, 60))
def test_games_go_to_pairs_that_have_the_fewest(sizes: list[int], before: list[int], games: int) -> None:
    groups = [[(f"a{number}", f"b{seating}") for seating in range(size)] for number, size in enumerate(sizes)]
    payoffs = Payoffs(PAIR)
    for group, count in zip(groups, before, strict=False):
        for profile in group:
            for _ in range(count):
                payoffs.add(Game(profile, (1.0, -1.0), 1))
    counts = fewest_first(groups, payoffs, games)
    assert games - max(sizes) < sum(counts.values()) <= games
    after = []
    for group, count in zip(groups, before, strict=False):
        (added,) = {counts.get(profile, 0) for profile in group}
        after.append((count + added, added))
    # A group that gets a game had at most as many games before as any other group that still fits.
    left = games - sum(counts.values())
    waiting = [total for (total, _), size in zip(after, sizes, strict=True) if size <= left]
    assert not waiting
    sizes_given = [size for (_, added), size in zip(after, sizes, strict=True) if added]
    fewest = [total for (total, _), size in zip(after, sizes, strict=True) if size <= min(sizes_given, default=0)]
    assert all(total - 1 <= min(fewest) for total, added in after if added and fewest)


def test_a_pair_with_more_seatings_than_games_plays_those_that_were_played_least() -> None:
    sides = default_sides([f"player_{number}" for number in range(11)])
    members, payoffs = members_of({"main": 1}, sides), Payoffs(sides, ["main"])
    rules = MatchRules(every_env_steps=1, games=40)
    seated: Counter[tuple[str, ...]] = Counter()
    for _ in range(12):
        counts = next_matches(members, payoffs, rules)
        assert sum(counts.values()) == 40
        seated += Counter(counts)
        for profile, count in counts.items():
            for _ in range(count):
                payoffs.add(Game(profile, (0.0,) * 11, 1))
    with_main = [count for profile, count in seated.items() if "main" in profile]
    assert sum(with_main) == 240
    # Two pairs of 22 seatings each.
    assert len(with_main) == 44
    assert max(with_main) - min(with_main) <= 1


def play(payoffs: Payoffs, counts: dict[tuple[str, ...], int]) -> None:
    for profile, count in counts.items():
        for number in range(count):
            sign = 1.0 if number % 2 else -1.0
            payoffs.add(Game(profile, (sign, -sign), 1))


@given(st.integers(0, 30), st.booleans(), st.integers(1, 5))
def test_interchangeable_sides_play_both_seatings_until_all_cells_have_equally_many_games(
    snapshots: int, symmetric: bool, sets: int
) -> None:
    members, payoffs = members_of({"main": snapshots}), Payoffs(PAIR, symmetric=symmetric)
    for _ in range(sets):
        counts = next_matches(members, payoffs, MatchRules(games=20, pairs="live"))
        assert sum(counts.values()) == 20
        assert all(counts[profile] == counts[profile[::-1]] for profile in counts)
        play(payoffs, counts)
    games = [sum(cell.games for key, cell in payoffs.cells.items() if other in key) for other in members.names[1:]]
    assert max(games) - min(games) <= 2


def test_half_of_the_games_are_of_pairs_without_a_live_member() -> None:
    members, payoffs = members_of({"main": 6}), Payoffs(PAIR)
    counts = next_matches(members, payoffs, MatchRules(games=40))
    assert sum(counts.values()) == 40
    assert sum(count for profile, count in counts.items() if "main" in profile) == 20
    # No pair is without a live member: it gets all games.
    assert sum(next_matches(members_of({"main": 0}), payoffs, MatchRules(games=40)).values()) == 40


def known_among(payoffs: Payoffs, names: list[str]) -> bool:
    return all((a, b) in payoffs.cells and (b, a) in payoffs.cells for a, b in combinations(names, 2))


def test_widely_spaced_snapshots_are_known_first() -> None:
    members, payoffs = members_of({"main": 33}), Payoffs(PAIR)
    spaced = {step: [f"main@{1 + number}" for number in range(0, 33, step)] for step in (16, 8, 4)}
    assert spaced[8] == ["main@1", "main@9", "main@17", "main@25", "main@33"]
    for step, sets in ((16, 1), (8, 2), (4, 5)):
        for _ in range(sets):
            play(payoffs, next_matches(members, payoffs, MatchRules(games=40)))
        assert known_among(payoffs, ["random", *spaced[step]]), step
    assert not known_among(payoffs, list(members.snapshots))


def test_a_long_league_has_weights_and_a_small_number_of_pairs() -> None:
    members = members_of({"main": 0})
    payoffs = {pairs: Payoffs(PAIR, ["main"]) for pairs in ("live", "all")}
    for steps in range(100, 6001, 100):
        for number in (steps - 50, steps):
            members.add("main", version=number, env_steps=number, agent_steps=number)
        for pairs, table in payoffs.items():
            play(table, next_matches(members, table, MatchRules(pairs=pairs)))  # type: ignore[arg-type]
    assert len(members.snapshots) == 120
    weights = {pairs: meta_weights(members, table).weights for pairs, table in payoffs.items()}
    assert weights["live"] == {}, "snapshots have no games against each other"
    assert len(weights["all"]) >= 20
    assert len({name for pair in pairings(members, "frozen") for name in pair[0]}) <= 64
