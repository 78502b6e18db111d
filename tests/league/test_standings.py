"""Standings: results by hand, order, weights of cycles, gaps, teams, and the text."""

import itertools
from collections.abc import Iterable, Mapping

import pytest

from marlflow.league.members import Members
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.ratings import Rating, Ratings
from marlflow.league.sides import Sides, default_sides, sides_of
from marlflow.league.standings import Standing, Standings, standings, standings_text
from tests.league.population import PAIR, members_of


def table(members: Members, games: Iterable[tuple[tuple[str, ...], tuple[float, ...]]]) -> Payoffs:
    payoffs = Payoffs(members.sides, live=[], decay=1.0)
    for profile, returns in games:
        payoffs.add(Game(profile, returns, env_steps=1))
    return payoffs


def rated(values: Mapping[str, Rating]) -> Ratings:
    ratings = Ratings()
    ratings.load_state({name: [rating.mu, rating.sigma] for name, rating in values.items()})
    return ratings


def by_name(shown: Standings) -> dict[str, Standing]:
    return {row.member: row for row in shown.rows}


def weights(shown: Standings) -> dict[str, float | None]:
    return {row.member: row.weight for row in shown.rows}


WON, DRAWN, LOST = (1.0, -1.0), (0.0, 0.0), (-1.0, 1.0)


def test_results_are_counted_by_member_and_by_seat() -> None:
    members = members_of({"main": 1})
    payoffs = table(
        members,
        [
            (("main", "main@1"), WON),
            (("main", "main@1"), DRAWN),
            (("main@1", "main"), WON),
            (("random", "main"), LOST),
            (("main", "main"), LOST),  # against itself: no result
        ],
    )
    rows = by_name(standings(members, payoffs, Ratings()))
    main, past, random = rows["main"], rows["main@1"], rows["random"]
    assert (main.games, main.win, main.draw, main.loss) == (4, 0.5, 0.25, 0.25)
    assert main.scores == (0.75, 0.5)
    assert (past.games, past.win, past.draw, past.loss) == (3, 1 / 3, 1 / 3, 1 / 3)
    assert past.scores == (1.0, 0.25)
    assert (random.games, random.win, random.loss, random.scores) == (1, 0.0, 1.0, (0.0, None))


def test_results_of_a_live_member_are_decayed_and_games_are_not() -> None:
    members = members_of({"main": 1})
    payoffs = Payoffs(PAIR, live=["main"], decay=0.5)
    for returns in (LOST, LOST, WON):
        payoffs.add(Game(("main", "main@1"), returns, env_steps=1))
    main = by_name(standings(members, payoffs, Ratings()))["main"]
    assert main.games == 3
    assert main.win == pytest.approx(1 / 1.75)


def test_members_are_in_the_order_of_their_ratings_and_then_of_their_results() -> None:
    members = members_of({"main": 3})
    played = [(("main@2", "main@3"), LOST), (("main", "random"), WON), (("main@1", "main"), WON)]
    payoffs = table(members, played)
    ratings = rated({"main": Rating(30, 2), "random": Rating(20, 1), "main@1": Rating(31, 1)})
    shown = standings(members, payoffs, ratings)
    assert [row.member for row in shown.rows] == ["main@1", "main", "random", "main@3", "main@2"]
    assert shown.is_relative
    rows = by_name(shown)
    assert (rows["main"].rating, rows["random"].rating) == (Rating(10, 2), Rating(0, 1))
    assert rows["main@3"].rating is None


def test_a_member_without_games_has_no_rating_and_overlaps_are_said() -> None:
    members = members_of({"main": 4})
    payoffs = table(members, [(("main", "main@1"), WON), (("main", "main@2"), WON)])
    names = ("main", "main@1", "main@2", "main@3", "main@4")
    ratings = rated(dict.fromkeys(names, Rating(30, 2)) | {"main@1": Rating(27.5, 1), "main@2": Rating(20, 1)})
    shown = standings(members, payoffs, ratings)
    rows = by_name(shown)
    assert {name: row.rating for name, row in rows.items() if row.rating} == {
        "main": Rating(30, 2),
        "main@1": Rating(27.5, 1),
        "main@2": Rating(20, 1),
    }
    assert shown.notes[1:] == (
        "no rating: random, main@3 and main@4 played no games against others",
        "the interval of main overlaps with that of main@1: which is best is not known",
    )
    apart = standings(
        members, payoffs, rated({"main": Rating(30, 1), "main@1": Rating(20, 1), "main@2": Rating(20, 1)})
    )
    assert not any("overlaps" in note for note in apart.notes)


def test_without_a_rated_random_member_ratings_are_absolute() -> None:
    members = members_of({"main": 1})
    shown = standings(members, table(members, [(("main", "main@1"), WON)]), rated({"main": Rating(30, 2)}))
    assert not shown.is_relative
    assert by_name(shown)["main"].rating == Rating(30, 2)


def circle(names: list[str], loser: str) -> list[tuple[tuple[str, ...], tuple[float, ...]]]:
    """Each beats the next one around, in both seats, and all beat `loser`."""
    games = []
    for place, name in enumerate(names):
        beaten = names[(place + 1) % len(names)]
        games += [((name, beaten), WON), ((beaten, name), LOST), ((name, loser), WON), ((loser, name), LOST)]
    return games


def test_nash_shows_the_circle_that_ratings_cannot() -> None:
    members = members_of({"main": 2})
    shown = standings(members, table(members, circle(["main", "main@1", "main@2"], "random")), Ratings())
    assert shown.method == "nash"
    assert weights(shown) == pytest.approx({"main": 1 / 3, "main@1": 1 / 3, "main@2": 1 / 3, "random": 0.0})
    assert shown.notes == ()


def test_nash_does_not_count_the_advantage_of_a_seat() -> None:
    members = members_of({"main": 1})
    names = ["main", "main@1", "random"]
    # The first seat is worth 5 to every member; in addition, main gains 1 from others.
    games = [((a, b), (5.0 + (a == "main") - (b == "main"), 0.0)) for a, b in itertools.permutations(names, 2)]
    assert weights(standings(members, table(members, games), Ratings())) == pytest.approx(
        {"main": 1.0, "main@1": 0.0, "random": 0.0}
    )


def test_members_without_all_games_have_no_weight_and_that_is_said() -> None:
    members = members_of({"main": 3})
    games = circle(["main", "main@1", "main@2"], "random")
    one_seat_only = [(("main@3", name), WON) for name in ("main", "main@1", "main@2", "random")]
    shown = standings(members, table(members, [*games, *one_seat_only]), Ratings())
    assert weights(shown)["main@3"] is None
    assert weights(shown)["main@1"] == pytest.approx(1 / 3)
    assert shown.notes == ("nash is over 4 of 5 members: 4 of 10 pairs of members have no games in both seatings",)


def test_without_any_pair_of_members_there_are_no_weights_and_that_is_said() -> None:
    members = members_of({"main": 1})
    shown = standings(members, table(members, [(("main", "main@1"), WON)]), Ratings())
    assert set(weights(shown).values()) == {None}
    assert shown.notes == ("no nash: 3 of 3 pairs of members have no games in both seatings",)


HUNT = default_sides(["adversary_0", "adversary_1", "agent_0"])
FITS = {"adversary": ["adversary_0", "adversary_1"], "agent": ["agent_0"]}


def hunt(payoff: Mapping[tuple[str, str], tuple[float, float]]) -> tuple[Members, Payoffs]:
    members = Members(HUNT, FITS, live=list(FITS))
    for policy in FITS:
        members.add(policy, 1, 10, 10)
    return members, table(members, payoff.items())


def test_where_members_have_a_role_each_every_role_has_its_weights() -> None:
    # Matching pennies with unequal stakes: mixtures (2/5, 3/5) and (3/5, 2/5) in closed form.
    values = {("adversary", "agent"): 0.0, ("adversary", "agent@1"): 3.0}
    values |= {("adversary@1", "agent"): 2.0, ("adversary@1", "agent@1"): 0.0}
    members, payoffs = hunt({profile: (value, -value) for profile, value in values.items()})
    shown = standings(members, payoffs, Ratings())
    assert shown.method == "nash"
    assert shown.roles == ("adversary", "agent")
    expected = {"adversary": 0.4, "adversary@1": 0.6, "agent": 0.6, "agent@1": 0.4}
    assert weights(shown) == pytest.approx(expected)
    assert by_name(shown)["agent"].scores[0] is None


def test_returns_without_a_constant_sum_are_weighed_by_alpha_rank() -> None:
    # A prisoner's dilemma: both end at the second member, each role's dominant choice.
    games = {("adversary", "agent"): (3.0, 3.0), ("adversary", "agent@1"): (0.0, 5.0)}
    games |= {("adversary@1", "agent"): (5.0, 0.0), ("adversary@1", "agent@1"): (1.0, 1.0)}
    members, payoffs = hunt(games)
    # A second, equal game of each, so that the standard errors are 0.
    for profile, returns in games.items():
        payoffs.add(Game(profile, returns, env_steps=1))
    shown = standings(members, payoffs, Ratings())
    assert shown.method == "alpha-rank"
    assert weights(shown) == pytest.approx({"adversary": 0, "adversary@1": 1, "agent": 0, "agent@1": 1}, abs=1e-4)


@pytest.mark.parametrize("symmetric", [False, True])
def test_members_of_one_population_too(symmetric: bool) -> None:
    """Chicken, whose sums differ; and a zero-sum game, to which a constant that is added changes nothing."""
    members = members_of({"main": 1})
    for dared, method in ((4.0, "alpha-rank"), (2.0, "nash")):
        payoffs = Payoffs(PAIR, symmetric=symmetric)
        for profile, returns in {("main", "main@1"): (dared, 1.0), ("main@1", "main"): (1.0, dared)}.items():
            for more in (0.0, 1.0, 0.0, 1.0) if method == "nash" else (0.0, 0.0):
                payoffs.add(Game(profile, (returns[0] + more, returns[1] - more), env_steps=1))
        for profile in (("main", "random"), ("main@1", "random"), ("random", "main"), ("random", "main@1")):
            lost = (0.5, 2.5) if profile[0] == "random" else (2.5, 0.5)
            for _ in range(2):
                payoffs.add(Game(profile, lost, env_steps=1))
        shown = standings(members, payoffs, Ratings())
        assert shown.method == method
        assert weights(shown) == pytest.approx({"main": 1, "main@1": 0, "random": 0}, abs=1e-4)


def test_a_role_that_lost_all_but_one_member_to_gaps_has_no_weights() -> None:
    members, payoffs = hunt({("adversary", "agent"): WON, ("adversary", "agent@1"): WON})
    shown = standings(members, payoffs, Ratings())
    assert set(weights(shown).values()) == {None}
    assert shown.notes == ("no nash: 2 of 4 combinations of members have no games",)


def test_members_left_out_of_a_role_are_named() -> None:
    values = {(a, b): WON for a in ("adversary", "adversary@1") for b in ("agent", "agent@1")}
    members, payoffs = hunt(values)
    members.add("agent", 2, 20, 20)
    payoffs.add(Game(("adversary", "agent@2"), LOST, env_steps=1))
    shown = standings(members, payoffs, Ratings())
    assert weights(shown)["agent@2"] is None
    assert shown.notes == ("nash leaves out agent@2 as agent: 1 of 6 combinations of members have no games",)


@pytest.mark.parametrize(("count", "named"), [(4, ""), (5, " and 1 more")])
def test_only_the_first_members_that_are_left_out_are_named(count: int, named: str) -> None:
    played = ["agent", *(f"agent@{number}" for number in range(1, 3 * count))]
    members, payoffs = hunt({(a, b): WON for a in ("adversary", "adversary@1") for b in played})
    for number in range(2, 4 * count):
        members.add("agent", number, 10 * number, 10 * number)
    for number in range(3 * count, 4 * count):
        payoffs.add(Game(("adversary", f"agent@{number}"), LOST, env_steps=1))
    (note,) = standings(members, payoffs, Ratings()).notes
    listed = ", ".join(f"agent@{number} as agent" for number in range(3 * count, 3 * count + 4))
    assert note.startswith(f"nash leaves out {listed}{named}: {count} of ")


def test_interchangeable_seats_need_one_seating_and_have_no_columns() -> None:
    members = members_of({"main": 2})
    payoffs = Payoffs(PAIR, symmetric=True)
    for profile, returns in circle(["main", "main@1", "main@2"], "random")[::2]:
        payoffs.add(Game(profile, returns, env_steps=1))
    shown = standings(members, payoffs, Ratings())
    assert weights(shown) == pytest.approx({"main": 1 / 3, "main@1": 1 / 3, "main@2": 1 / 3, "random": 0.0})
    assert (shown.roles, shown.notes) == ((), ())
    assert by_name(shown)["main"].scores == ()
    assert by_name(shown)["main"].win == 2 / 3
    assert "seat" not in standings_text(shown)
    few = Payoffs(PAIR, symmetric=True)
    assert standings(members, few, Ratings()).notes == ("no nash: 6 of 6 pairs of members have no games",)


def three(count: int) -> Members:
    return members_of({"main": count}, default_sides(["player_0", "player_1", "player_2"]))


def test_three_players_are_weighed_by_alpha_rank() -> None:
    members = three(0)
    strength = {"main": 1.0, "random": 0.0}
    games = [(profile, tuple(strength[name] for name in profile)) for profile in itertools.product(strength, repeat=3)]
    shown = standings(members, table(members, games), Ratings())
    assert (shown.method, shown.roles) == ("alpha-rank", ("seat 1", "seat 2", "seat 3"))
    assert weights(shown) == pytest.approx({"main": 1.0, "random": 0.0}, abs=1e-4)
    main = by_name(shown)["main"]
    assert main.games == 6, "of 8, 2 are between one member alone"
    assert main.win == 1.0


def test_more_profiles_than_alpha_rank_takes_are_said() -> None:
    members = three(30)
    shown = standings(members, Payoffs(members.sides), Ratings())
    assert shown.notes == ("no alpha-rank: 32,768 combinations of members are too many; the most are 20,000",)


def test_a_side_of_two_roles() -> None:
    sides, problems = sides_of({"red": [["red_0"], ["red_1"]], "blue": [["blue_0"]]}, ["red_0", "red_1", "blue_0"])
    assert not problems
    members = members_of({"main": 0}, sides)
    games = [(("main", "random", "random"), (1.0, 1.0, 0.0)), (("main", "main", "random"), (0.0, 0.0, 4.0))]
    shown = standings(members, table(members, games), Ratings())
    main = by_name(shown)["main"]
    assert shown.roles == ("red_0", "red_1", "blue")
    assert (main.games, main.scores) == (2, (0.5, 0.0, None))


def test_since_when_a_member_is_as_it_is() -> None:
    members = members_of({"main": 0, "other": 0})
    members.add("main", version=7, env_steps=2_000, agent_steps=1_500)
    members.incarnations["other"] = 2
    rows = by_name(standings(members, Payoffs(PAIR), Ratings(), {"main": 1_412}))
    assert rows["main"].since == "live, version 1,412"
    assert rows["other"].since == "live, 2 resets"
    assert rows["main@1"].since == "1,500 agent steps, from main"
    assert rows["random"].since == "never changes"


AFTER_GAMES = ["win", "draw", "loss", "seat", "1", "seat", "2", "nash", "since"]


def test_the_text_is_aligned_and_names_algorithms() -> None:
    members = members_of({"main": 1})
    payoffs = table(members, circle(["main", "main@1"], "random")[:1])
    ratings = rated({"main": Rating(34.22, 1.1), "random": Rating(20, 0.98), "main@1": Rating(9.9, 2)})
    shown = standings(members, payoffs, ratings, {"main": 412})
    assert standings_text(shown, {"main": "ppo", "random": "random"}).splitlines() == [
        "#  member  by         rating  games   win  draw  loss  seat 1  seat 2  nash  since",
        "1  main    ppo     +14.2±1.1      1  1.00  0.00  0.00    1.00       -     -  live, version 412",
        "2  main@1  ppo     -10.1±2.0      1  0.00  0.00  1.00       -    0.00     -  0 agent steps, from main",
        "3  random  random          -      0     -     -     -       -       -     -  never changes",
        "no nash: 3 of 3 pairs of members have no games in both seatings",
        "no rating: random played no games against others",
    ]
    without = standings_text(shown).splitlines()
    assert without[0].split() == ["#", "member", "rating", "games", *AFTER_GAMES]


def test_names_cannot_send_commands_to_a_terminal() -> None:
    sides = Sides(PAIR.names, PAIR.roles)
    members = Members(sides, {"\x1b[31mred": ["player_0", "player_1"]}, live=["\x1b[31mred"])
    text = standings_text(standings(members, Payoffs(sides), Ratings()))
    assert "\x1b" not in text
    assert "?[31mred" in text


def test_an_empty_league_has_rows_and_no_numbers() -> None:
    members = members_of({"main": 0})
    rows = standings(members, Payoffs(PAIR), Ratings()).rows
    assert [(row.member, row.games, row.win, row.rating) for row in rows] == [
        ("main", 0, None, None),
        ("random", 0, None, None),
    ]
