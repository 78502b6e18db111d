"""The payoff tables, compared with a naive loop over a list of the same games."""

import math
import statistics
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.league.game_statistics import Outcomes, Returns
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.sides import Sides, default_sides, sides_of

PAIR = default_sides(["player_0", "player_1"])
THREE = default_sides(["player_0", "player_1", "player_2"])
# Two roles on one side, one of which has two agents, against one role.
TEAMS, _ = sides_of(
    {"red": [["red_0", "red_1"], ["red_2"]], "blue": [["blue_*"]]}, ["red_0", "red_1", "red_2", "blue_0"]
)
FOUR_ROLES, _ = sides_of(
    {"red": [["red_0"], ["red_1"]], "blue": [["blue_0"], ["blue_1"]]}, ["red_0", "red_1", "blue_0", "blue_1"]
)
MEMBERS = ("main", "main@1", "main@2", "random")
LIVE = ("main",)
# Powers of two, so that sums are exact in any order.
VALUES = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0])


def games_of(sides: Sides, most: int = 30) -> st.SearchStrategy[list[Game]]:
    roles = len(sides.roles)
    game = st.builds(
        Game,
        st.tuples(*[st.sampled_from(MEMBERS)] * roles),
        st.tuples(*[VALUES] * roles),
        st.integers(1, 9),
        st.booleans(),
    )
    return st.lists(game, max_size=most)


ANY_GAMES = st.sampled_from([PAIR, THREE, TEAMS]).flatmap(lambda sides: st.tuples(st.just(sides), games_of(sides)))


def table(sides: Sides, games: list[Game], **settings: float) -> Payoffs:
    payoffs = Payoffs(sides, LIVE, **settings)
    for game in games:
        payoffs.add(game)
    return payoffs


def score(sides: Sides, game: Game, side: int) -> float:
    returns = [value for role, value in zip(sides.roles, game.returns, strict=True) if role.side == side]
    return sum(returns) / len(returns)


def raw_outcomes(differences: list[float]) -> tuple[int, int, int]:
    return sum(d > 0 for d in differences), sum(d == 0 for d in differences), sum(d < 0 for d in differences)


def team(sides: Sides, game: Game, side: int) -> list[str]:
    return [member for role, member in zip(sides.roles, game.profile, strict=True) if role.side == side]


# By hand: 1, then 0, then 1, with half of the weight kept at each.
@pytest.mark.parametrize(
    ("values", "weight", "weight_squared", "mean", "m2"),
    [
        ([1.0], 1.0, 1.0, 1.0, 0.0),
        ([1.0, 0.0], 1.5, 1.25, 1 / 3, 1 / 3),
        ([1.0, 0.0, 1.0], 1.75, 1.3125, 5 / 7, 5 / 14),
    ],
)
def test_decayed_returns_are_these(
    values: list[float], weight: float, weight_squared: float, mean: float, m2: float
) -> None:
    returns = Returns()
    for value in values:
        returns.add(value, 0.5)
    assert (returns.weight, returns.weight_squared) == (weight, weight_squared)
    assert (returns.decayed_mean, returns.decayed_m2) == (pytest.approx(mean), pytest.approx(m2))
    assert returns.effective_n == weight**2 / weight_squared


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=50), st.sampled_from([1.0, 0.99, 0.5]))
def test_mean_variance_and_standard_error_are_the_weighted_ones(values: list[float], decay: float) -> None:
    returns = Returns()
    for value in values:
        returns.add(value, decay)
    weights = decay ** np.arange(len(values))[::-1]
    mean = np.average(values, weights=weights)
    variance = np.average((values - mean) ** 2, weights=weights)
    assert returns.decayed_mean == pytest.approx(mean, abs=1e-9)
    assert returns.decayed_m2 / returns.weight == pytest.approx(variance, abs=1e-8)
    assert (returns.n, returns.mean) == (len(values), pytest.approx(np.mean(values), abs=1e-9))
    assert returns.m2 / returns.n == pytest.approx(np.var(values), abs=1e-8)
    if len(values) == 1:
        assert returns.standard_error == math.inf
    else:
        # The unbiased variance of values with weights that say how reliable they are.
        unbiased = variance * weights.sum() ** 2 / (weights.sum() ** 2 - (weights**2).sum())
        of_mean = unbiased * (weights**2).sum() / weights.sum() ** 2
        assert returns.standard_error == pytest.approx(math.sqrt(of_mean), abs=1e-6)


def test_without_decay_the_standard_error_is_the_textbook_one() -> None:
    returns = Returns()
    for value in (1.0, 2.0, 3.0, 4.0):
        returns.add(value, 1.0)
    assert (returns.effective_n, returns.standard_error) == (4.0, statistics.stdev([1.0, 2.0, 3.0, 4.0]) / 2.0)


def test_nothing_is_known_before_the_first_game() -> None:
    assert (Returns().effective_n, Returns().standard_error) == (0.0, math.inf)
    assert (Outcomes().games, Outcomes().win_probability(4.0), Outcomes().win_probability(0.0)) == (0, 0.5, 0.5)
    means, errors = Payoffs(PAIR).returns(("main", "random"))
    assert np.isnan(means).all()
    assert np.isinf(errors).all()


@pytest.mark.parametrize(
    ("differences", "decay", "prior_games", "chance"),
    [
        ([1.0], 1.0, 4.0, 3 / 5),
        ([1.0], 1.0, 0.0, 1.0),
        ([0.0], 1.0, 0.0, 0.5),
        ([-1.0], 1.0, 0.0, 0.0),
        ([1.0, 1.0, -1.0, 0.0], 1.0, 4.0, 4.5 / 8),
        ([1e-10, -1e-10], 1.0, 0.0, 0.5),  # ties: less than the tolerance apart
        ([1.0, -1.0], 0.5, 0.0, 1 / 3),
        ([1.0, 0.0, -1.0], 0.5, 1.0, (0.25 + 0.25 + 0.5) / 2.75),
    ],
)
def test_win_probabilities_are_these(differences: list[float], decay: float, prior_games: float, chance: float) -> None:
    outcomes = Outcomes()
    for difference in differences:
        outcomes.add(difference, decay)
    assert outcomes.win_probability(prior_games) == pytest.approx(chance)
    assert outcomes.games == len(differences)


def test_a_cell_is_this_after_two_games() -> None:
    games = [Game(("main", "random"), (1.0, -1.0), 5), Game(("main", "random"), (-1.0, 1.0), 7, truncated=True)]
    cell = table(PAIR, games, decay=0.5).cells["main", "random"]
    assert (cell.games, cell.truncated, cell.env_steps) == (2, 1, 12)
    assert cell.roles[0] == Returns(2, 0.0, 2.0, 1.5, 1.25, pytest.approx(-1 / 3), pytest.approx(4 / 3))
    assert cell.pairs == {(0, 1): Outcomes(1, 0, 1, 0.5, 0.0, 1.0)}


@pytest.mark.parametrize("seats", ["first", "both"])
def test_a_game_in_other_seats_makes_earlier_ones_weigh_less_too(seats: str) -> None:
    returns = [1.0] * 50 + [-1.0] * 10
    games = [
        Game(("main@1", "main"), (-value, value), 1)
        if number % 2 and seats == "both"
        else Game(("main", "main@1"), (value, -value), 1)
        for number, value in enumerate(returns)
    ]
    weights = 0.9 ** np.arange(len(returns))[::-1]
    expected = (weights @ (np.array(returns) > 0) + 2.0) / (weights.sum() + 4.0)
    for symmetric in (False, True):
        payoffs = table(PAIR, games, decay=0.9, prior_games=4.0, symmetric=symmetric)
        assert payoffs.win_probability("main", "main@1") == pytest.approx(expected)
        assert payoffs.win_probability("main@1", "main") == pytest.approx(1.0 - expected)


def test_frozen_members_games_never_decay() -> None:
    payoffs = table(PAIR, [Game(("main@1", "random"), (1.0, -1.0), 5)] * 3, decay=0.5)
    assert payoffs.cells["main@1", "random"].pairs[0, 1].decayed_wins == 3.0
    assert payoffs.cells["main@1", "random"].roles[0].weight == 3.0


@given(ANY_GAMES)
def test_cells_have_what_a_naive_loop_counts(made: tuple[Sides, list[Game]]) -> None:
    sides, games = made
    payoffs = table(sides, games)
    assert list(payoffs.cells) == list(dict.fromkeys(game.profile for game in games))
    for profile, cell in payoffs.cells.items():
        own = [game for game in games if game.profile == profile]
        steps, truncated = sum(game.env_steps for game in own), sum(game.truncated for game in own)
        assert (cell.games, cell.truncated, cell.env_steps) == (len(own), truncated, steps)
        for role, returns in enumerate(cell.roles):
            values = [game.returns[role] for game in own]
            assert (returns.n, returns.mean) == (len(own), pytest.approx(np.mean(values)))
            assert returns.m2 == pytest.approx(np.var(values) * len(own), abs=1e-9)
        for (i, j), outcomes in cell.pairs.items():
            is_same = team(sides, own[0], i) == team(sides, own[0], j)
            differences = [] if is_same else [score(sides, g, i) - score(sides, g, j) for g in own]
            assert (outcomes.wins, outcomes.draws, outcomes.losses) == raw_outcomes(differences)


@given(ANY_GAMES, st.randoms(use_true_random=False))
def test_the_order_of_games_changes_no_raw_number(made: tuple[Sides, list[Game]], random: object) -> None:
    sides, games = made
    shuffled = games[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = table(sides, games), table(sides, shuffled)
    assert one.cells.keys() == other.cells.keys()
    assert one.pairs.keys() == other.pairs.keys()
    for profile, cell in one.cells.items():
        came = other.cells[profile]
        assert (cell.games, cell.truncated, cell.env_steps) == (came.games, came.truncated, came.env_steps)
        assert raw(cell.pairs.values()) == raw(came.pairs.values())
        means, others = [role.mean for role in cell.roles], [role.mean for role in came.roles]
        assert means == pytest.approx(others, abs=1e-9)
    for key, pair in one.pairs.items():
        assert pair.games == other.pairs[key].games
        assert raw([pair.outcomes]) == raw([other.pairs[key].outcomes])


def raw(outcomes: object) -> list[tuple[int, int, int]]:
    return [(one.wins, one.draws, one.losses) for one in outcomes]  # type: ignore[attr-defined]


@given(ANY_GAMES)
def test_marginals_are_those_of_the_games(made: tuple[Sides, list[Game]]) -> None:
    sides, games = made
    payoffs = table(sides, games)
    expected = {
        (a, game.profile[a], b, game.profile[b]) for game in games for a, b in permutations(range(len(sides.roles)), 2)
    }
    assert payoffs.pairs.keys() == expected
    for (a, member, b, other), pair in payoffs.pairs.items():
        own = [game for game in games if (game.profile[a], game.profile[b]) == (member, other)]
        one_side, other_side = sides.roles[a].side, sides.roles[b].side
        counts = one_side != other_side and member != other
        differences = [score(sides, g, one_side) - score(sides, g, other_side) for g in own] if counts else []
        assert (pair.games, pair.returns.n) == (len(own), len(own))
        assert pair.returns.mean == pytest.approx(np.mean([game.returns[a] for game in own]), abs=1e-9)
        assert raw([pair.outcomes]) == [raw_outcomes(differences)]


@given(games_of(PAIR) | games_of(THREE))
def test_marginals_follow_from_the_cells(games: list[Game]) -> None:
    sides = PAIR if not games or len(games[0].profile) == 2 else THREE
    payoffs = table(sides, games)
    for (a, member, b, other), pair in payoffs.pairs.items():
        cells = [c for profile, c in payoffs.cells.items() if (profile[a], profile[b]) == (member, other)]
        assert pair.games == sum(cell.games for cell in cells)
        assert pair.returns.mean == pytest.approx(
            sum(cell.roles[a].mean * cell.games for cell in cells) / pair.games, abs=1e-9
        )
        # Cells (i, j) with i < j: in the other order wins are losses.
        found = [cell.pairs[min(a, b), max(a, b)] for cell in cells]
        wins, draws, losses = np.sum([(0, 0, 0), *raw(found)], axis=0)
        assert raw([pair.outcomes]) == [(wins, draws, losses) if a < b else (losses, draws, wins)]


@given(games_of(THREE), st.permutations(range(3)))
def test_relabelling_seats_permutes_the_table(games: list[Game], order: list[int]) -> None:
    def moved(values: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(values[seat] for seat in order)

    relabelled = [Game(moved(g.profile), moved(g.returns), g.env_steps, g.truncated) for g in games]  # type: ignore[arg-type]
    one, other = table(THREE, games), table(THREE, relabelled)
    assert {moved(profile) for profile in one.cells} == set(other.cells)
    for profile, cell in one.cells.items():
        assert [*moved(tuple(cell.roles))] == other.cells[moved(profile)].roles  # type: ignore[index]
    for (a, member, b, opponent), pair in one.pairs.items():
        assert other.pairs[order.index(a), member, order.index(b), opponent] == pair
    for member in MEMBERS:
        for opponent in MEMBERS:
            chances = one.win_probability(member, opponent), other.win_probability(member, opponent)
            assert chances[0] == pytest.approx(chances[1])
            assert one.games(member, opponent) == other.games(member, opponent)


@given(ANY_GAMES)
def test_two_members_chances_sum_to_one(made: tuple[Sides, list[Game]]) -> None:
    payoffs = table(*made)
    for member in MEMBERS:
        for other in MEMBERS:
            total = payoffs.win_probability(member, other) + payoffs.win_probability(other, member)
            assert total == pytest.approx(1.0)


def test_a_member_against_itself_has_returns_and_no_outcomes() -> None:
    payoffs = table(PAIR, [Game(("main", "main"), (1.0, -1.0), 3)])
    assert payoffs.win_probability("main", "main") == 0.5
    assert payoffs.games("main", "main") == 0
    assert payoffs.cells["main", "main"].pairs[0, 1].games == 0
    assert payoffs.cells["main", "main"].roles[0].mean == 1.0
    assert payoffs.pairs[1, "main", 0, "main"].returns.mean == -1.0


@given(
    st.sampled_from([PAIR, THREE, TEAMS, FOUR_ROLES]).flatmap(lambda sides: st.tuples(st.just(sides), games_of(sides)))
)
def test_a_game_of_two_rivals_counts_once_in_however_many_roles_they_met(made: tuple[Sides, list[Game]]) -> None:
    sides, games = made
    payoffs = table(sides, games)
    for one, other in permutations(MEMBERS, 2):
        met = [game for game in games if rivals(sides, game, one, other)]
        assert payoffs.games(one, other) == len(met)
    reloaded = Payoffs(sides, LIVE)
    reloaded.load_state(from_bytes(to_bytes(payoffs.state())))
    assert all(payoffs.games(*pair) == reloaded.games(*pair) for pair in permutations(MEMBERS, 2))


def rivals(sides: Sides, game: Game, one: str, other: str) -> bool:
    sides_of_one, sides_of_other = (
        {role.side for role, member in zip(sides.roles, game.profile, strict=True) if member == name}
        for name in (one, other)
    )
    return any(a != b for a in sides_of_one for b in sides_of_other)


def test_chances_after_one_game_of_teams_are_those_after_one_game_of_two() -> None:
    teams = table(FOUR_ROLES, [Game(("a", "a", "b", "b"), (1.0, 1.0, 0.0, 0.0), 9)], prior_games=4.0)
    alone = table(PAIR, [Game(("a", "b"), (1.0, 0.0), 9)], prior_games=4.0)
    assert teams.win_probability("a", "b") == alone.win_probability("a", "b") == 0.6
    assert not teams.beats_all("a", ["b"], 0.5, min_games=2)


def test_three_player_free_for_all_counts_each_pair_by_its_own_scores() -> None:
    payoffs = table(THREE, [Game(("a", "b", "c"), (3.0, 1.0, 1.0), 9)], prior_games=0.0)
    cell = payoffs.cells["a", "b", "c"]
    assert raw(cell.pairs.values()) == [(1, 0, 0), (1, 0, 0), (0, 1, 0)]
    chances = [payoffs.win_probability(*pair) for pair in (("a", "b"), ("b", "a"), ("b", "c"), ("c", "a"))]
    assert chances == [1.0, 0.0, 0.5, 0.0]


def test_roles_of_a_side_share_its_score_and_do_not_beat_each_other() -> None:
    # Red has the mean of 4 and 0, which is more than blue's 1.
    payoffs = table(TEAMS, [Game(("a", "b", "c"), (4.0, 0.0, 1.0), 9)], prior_games=0.0)
    assert raw(payoffs.cells["a", "b", "c"].pairs.values()) == [(1, 0, 0)]
    assert payoffs.win_probability("b", "c") == 1.0
    assert payoffs.games("a", "b") == 0
    assert payoffs.pairs[0, "a", 1, "b"].returns.mean == 4.0
    assert payoffs.pairs[1, "b", 0, "a"].returns.mean == 0.0
    assert payoffs.pairs[0, "a", 1, "b"].outcomes.games == 0


def test_matrices_have_the_mean_returns_of_all_roles() -> None:
    games = [Game(("a", "x"), (1.0, -1.0), 1), Game(("a", "x"), (0.0, 0.0), 1), Game(("b", "x"), (2.0, -3.0), 1)]
    matrices = table(PAIR, games).matrices([["a", "b"], ["x", "y"]])
    expected = [[[0.5, np.nan], [2.0, np.nan]], [[-0.5, np.nan], [-3.0, np.nan]]]
    np.testing.assert_array_equal(matrices, expected)


@given(ANY_GAMES)
def test_state_through_bytes_restores_everything(made: tuple[Sides, list[Game]]) -> None:
    sides, games = made
    payoffs = table(sides, games)
    payoffs.reset("main", 0)
    for game in games[::2]:
        payoffs.add(game)
    restored = Payoffs(sides, LIVE)
    restored.load_state(from_bytes(to_bytes(payoffs.state())))
    assert (restored.cells, restored.pairs, restored.past) == (payoffs.cells, payoffs.pairs, payoffs.past)
    assert to_bytes(restored.state()) == to_bytes(payoffs.state())
    for game in games:
        payoffs.add(game)
        restored.add(game)
    assert (restored.cells, restored.pairs) == (payoffs.cells, payoffs.pairs)
    for member in MEMBERS:
        assert restored.win_probability("main", member) == payoffs.win_probability("main", member)


def test_a_reset_moves_the_games_of_one_member() -> None:
    games = [Game(("main", "main@1"), (1.0, -1.0), 1), Game(("main@1", "random"), (1.0, -1.0), 1)]
    payoffs = table(PAIR, games)
    moved = payoffs.cells["main", "main@1"]
    payoffs.reset("main", 0)
    assert payoffs.past == {"main:0": {("main", "main@1"): moved}}
    assert list(payoffs.cells) == [("main@1", "random")]
    assert payoffs.win_probability("main", "main@1") == 0.5
    assert payoffs.games("main@1", "random") == 1
    payoffs.add(games[0])
    assert payoffs.games("main", "main@1") == 1
    assert moved.games == 1


# -- interchangeable sides ------------------------------------------------------------------------------------------

NAMES = ("main", "a", "b")


@given(
    st.lists(st.tuples(st.sampled_from(["main", "a", "b"]), st.sampled_from(["main", "a", "b"]), st.integers(-3, 3)))
)
def test_with_symmetric_sides_a_game_counts_as_it_would_with_the_seats_changed(games: Any) -> None:
    one, other = (Payoffs(PAIR, ["main"], symmetric=True) for _ in range(2))
    for number, (first, second, value) in enumerate(games):
        game = Game((first, second), (float(value), -float(value)), 4)
        one.add(game)
        mirrored = Game((second, first), (-float(value), float(value)), 4)
        other.add(mirrored if number % 2 else game)
    assert to_bytes(one.state()) == to_bytes(other.state())
    for first, second in product(NAMES, repeat=2):
        means, errors = one.returns((first, second))
        changed = one.returns((second, first))
        np.testing.assert_array_equal(means, changed[0][::-1])
        np.testing.assert_array_equal(errors, changed[1][::-1])
    assert sum(cell.games for cell in one.cells.values()) == len(games)


def test_sides_that_the_same_member_plays_have_the_mean_of_their_returns() -> None:
    # The first of three players always gains 3: that is no merit of the member who plays it.
    payoffs = Payoffs(default_sides(["player_0", "player_1", "player_2"]), symmetric=True)
    payoffs.add(Game(("a", "a", "b"), (3.0, -1.0, -2.0), 1))
    payoffs.add(Game(("b", "a", "a"), (3.0, -1.0, -2.0), 1))
    payoffs.add(Game(("b", "b", "b"), (3.0, -1.0, -2.0), 1))
    assert payoffs.returns(("a", "b", "a"))[0].tolist() == [-0.25, 0.5, -0.25]
    assert payoffs.returns(("b", "b", "b"))[0].tolist() == [0.0, 0.0, 0.0]
    assert payoffs.win_probability("b", "a") == (1 * 2 + 2.0) / (4 + 4), "won twice, against two; lost twice"
    assert payoffs.cell(("a", "b", "a")) is payoffs.cell(("b", "a", "a")) is payoffs.cells["a", "a", "b"]


def test_symmetric_teams_change_seats_as_a_whole() -> None:
    sides, _ = sides_of({"red": [["r_0"], ["r_1"]], "blue": [["b_0"], ["b_1"]]}, ["r_0", "r_1", "b_0", "b_1"])
    payoffs = Payoffs(sides, symmetric=True)
    payoffs.add(Game(("z", "a", "b", "c"), (1.0, 2.0, 3.0, 4.0), 1))
    payoffs.add(Game(("b", "c", "z", "a"), (5.0, 6.0, 7.0, 8.0), 1))
    assert payoffs.returns(("z", "a", "b", "c"))[0].tolist() == [4.0, 5.0, 4.0, 5.0]
    assert [cell.games for cell in payoffs.cells.values()] == [2]
    assert np.isnan(payoffs.returns(("a", "z", "b", "c"))[0]).all()


def test_without_it_each_order_has_its_own_cell() -> None:
    payoffs = Payoffs(PAIR)
    payoffs.add(Game(("a", "b"), (1.0, -1.0), 1))
    assert np.isnan(payoffs.returns(("b", "a"))[0]).all()
