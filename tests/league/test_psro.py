"""PSRO with exact oracles: best responses by enumeration, matches with exact returns."""

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from open_spiel.python.egt import alpharank as openspiel

import marlflow as mf
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.members import Members
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.sides import default_sides
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.receipts import EpisodeResult, Evaluated
from tests.league.games import BIASED, PENNIES, kuhn, nash_conv
from tests.league.population import NEVER, PAIR, agree, matchmaker_of, members_of

AGENTS = ["player_0", "player_1"]
ORACLES = {"row": ["player_0"], "column": ["player_1"]}
AT_START = mf.SnapshotRules(at_start=True, every_agent_steps=None)
THREE = default_sides(["player_0", "player_1", "player_2"])
RNG = np.random.default_rng(0)


class Exact:
    """A league whose oracles are best responses to the meta-strategies, and whose matches have expected returns.

    `initial` is the pure strategy of both initial policies; without it, all begin with `random`, the uniform mixture.
    """

    def __init__(self, game: np.ndarray, mode: mf.PSRO, initial: int | None = None) -> None:
        self.game, self.mode = game, mode
        fits = dict(ORACLES) if initial is not None else {**ORACLES, "random": AGENTS}
        members = Members(PAIR, fits, live=list(ORACLES))
        live = list(ORACLES)
        rules = NEVER if initial is None else AT_START
        self.matchmaker = LeagueMatchmaker(members, mode, Payoffs(PAIR, live), Ratings(live), rules)
        self.mixtures: dict[tuple[int, str], np.ndarray] = {}
        for role, size in enumerate(game.shape):
            self.mixtures[role, "random"] = np.full(size, 1.0 / size)
        self.oracles = [np.eye(size)[initial or 0] for size in game.shape]
        self.iterations = 0
        self.change(0)
        self.play_matches()

    def change(self, agent_steps: int) -> Mapping[str, str]:
        change = self.matchmaker.change_population({"row": 0, "column": 0}, dict.fromkeys(ORACLES, agent_steps))
        for name, policy in change.freeze.items():
            role = list(ORACLES).index(policy)
            self.mixtures[role, name] = self.oracles[role]
        self.resets = list(self.matchmaker.resets())
        return change.freeze

    def play_matches(self) -> None:
        while (batch := self.matchmaker.matches_due()) is not None:
            self.matchmaker.observe_matches(Evaluated(tuple(self.played(batch))))

    def played(self, batch: EvaluationRequest) -> list[EpisodeResult]:
        results = []
        for number, matchup in zip(batch.episodes, batch.matchups, strict=True):
            first, second = (self.mixtures[role, matchup[agent]] for role, agent in enumerate(AGENTS))
            value = float(first @ self.game @ second)
            results.append(EpisodeResult(0, number, 1, {"player_0": value, "player_1": -value}))
        return results

    def strategies(self) -> list[np.ndarray]:
        """The meta-strategies as mixtures of pure strategies."""
        return [
            sum(weight * self.mixtures[role, name] for name, weight in mixture.items())
            for role, mixture in enumerate(self.mode.meta)
        ]

    def iterate(self) -> None:
        row, column = self.strategies()
        self.oracles = [
            np.eye(len(self.game))[(self.game @ column).argmax()],
            np.eye(self.game.shape[1])[(row @ self.game).argmin()],
        ]
        self.iterations += 1
        assert len(self.change(self.iterations * self.mode.agent_steps)) == 2
        self.play_matches()

    def nash_convs(self, iterations: int) -> list[float]:
        found = [nash_conv(self.game, *self.strategies())]
        for _ in range(iterations):
            self.iterate()
            found.append(nash_conv(self.game, *self.strategies()))
        return found


def test_it_is_a_mode_with_a_meta_game_and_rules_of_its_own() -> None:
    assert mf.PSRO().has_meta_game
    assert mf.PSRO().has_snapshot_rules


def test_matching_pennies_is_solved_from_a_pure_strategy() -> None:
    league = Exact(PENNIES, mf.PSRO(games=1), initial=0)
    found = league.nash_convs(4)
    assert found[0] == 2.0
    assert found[-1] == pytest.approx(0.0, abs=1e-9)
    for mixture in league.strategies():
        assert mixture == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("initial", [0, 1, 2])
def test_biased_rock_paper_scissors_is_solved_from_a_pure_strategy(initial: int) -> None:
    league = Exact(BIASED, mf.PSRO(games=1), initial)
    found = league.nash_convs(5)
    assert found[0] >= 0.1
    assert found[-1] == pytest.approx(0.0, abs=1e-9)
    for mixture in league.strategies():
        assert mixture == pytest.approx([0.0625, 0.625, 0.3125])


def test_kuhn_poker_is_solved_by_seven_members_of_each_role() -> None:
    league = Exact(kuhn(), mf.PSRO(games=1))
    found = league.nash_convs(6)
    assert found == pytest.approx([0.917, 0.833, 0.333, 0.183, 0.222, 0.135, 0.0], abs=6e-4)
    row, column = league.strategies()
    assert row @ league.game @ column == pytest.approx(-1 / 18)


def test_the_uniform_solver_needs_many_more_members_in_kuhn_poker() -> None:
    found = Exact(kuhn(), mf.PSRO("uniform", games=1)).nash_convs(9)
    assert min(found) > 0.1


def test_best_responses_to_the_newest_member_alone_cycle_in_kuhn_poker() -> None:
    # The negative control: without meta-strategies no pair is ever less exploitable than 1/3.
    game = kuhn()
    row, column = np.eye(64)[0], np.eye(64)[0]
    found = []
    for _ in range(40):
        row, column = np.eye(64)[(game @ column).argmax()], np.eye(64)[(row @ game).argmin()]
        found.append(nash_conv(game, row, column))
    assert min(found) >= 1 / 3 - 1e-9


def test_rivals_are_drawn_from_the_meta_strategy_of_their_role() -> None:
    league = Exact(BIASED, mf.PSRO(games=1), initial=0)
    league.nash_convs(5)
    dealt = [
        league.matchmaker(mf.EpisodeId(0, episode), AGENTS, np.random.default_rng([3, episode]))
        for episode in range(6000)
    ]
    for role, (own, oracle) in enumerate([("player_1", "column"), ("player_0", "row")]):
        rivals = Counter(matchup[AGENTS[role]] for matchup in dealt if matchup[own] == oracle)
        assert sum(rivals.values()) == 3000
        assert agree(rivals, league.mode.meta[role])


def test_a_new_profile_plays_its_games_once() -> None:
    league = Exact(PENNIES, mf.PSRO(games=3), initial=0)
    league.nash_convs(2)
    cells = league.matchmaker.matches.payoffs.cells
    assert len(cells) == 9
    assert {cell.games for cell in cells.values()} == {3}
    assert league.matchmaker.matches_due() is None


def test_an_iteration_ends_for_all_oracles_at_once() -> None:
    league = Exact(PENNIES, mf.PSRO(games=1, agent_steps=100), initial=0)
    matchmaker = league.matchmaker
    change = matchmaker.change_population({"row": 1, "column": 1}, {"row": 400, "column": 99})
    assert not change.freeze
    assert league.mode.iteration == 0
    change = matchmaker.change_population({"row": 2, "column": 2}, {"row": 410, "column": 100})
    assert change.freeze == {"row@2": "row", "column@2": "column"}
    assert league.mode.iteration == 1
    change = matchmaker.change_population({"row": 3, "column": 3}, {"row": 509, "column": 200})
    assert not change.freeze, "agent steps count from the last snapshot"


@pytest.mark.parametrize("every", [None, "auto", 30])
def test_snapshots_by_rule_neither_end_nor_delay_an_iteration(every: Any) -> None:
    league = mf.League(mf.PSRO(agent_steps=100), snapshots=mf.SnapshotRules(every_agent_steps=every)).for_run(1_000)
    matchmaker = matchmaker_of(members_of({"main": 0}), league.matchmaker, league.snapshots)
    resets = []
    for number in range(11):
        matchmaker.change_population({"main": number}, {"main": 20 * number})
        resets += [(number, reset.policy) for reset in matchmaker.resets()]
        if number == 7:
            kept = from_bytes(to_bytes(matchmaker.state()))
            matchmaker = matchmaker_of(members_of({"main": 0}), league.matchmaker, league.snapshots)
            matchmaker.load_state(kept)
    assert resets == [(5, "main"), (10, "main")]
    by_rule = len(matchmaker.members.snapshots) - 3
    assert by_rule == (4 if every == 30 else 0)


def test_a_mode_may_name_policies_that_do_not_learn() -> None:
    class Careless(mf.PFSP):
        def snapshots_due(self, view: mf.LeagueView, agent_steps: Mapping[str, int]) -> list[str]:
            return ["main", "random", "main@1"] if agent_steps["main"] >= 100 else []

    matchmaker = matchmaker_of(members_of({"main": 0}), Careless(), mf.SnapshotRules(every_agent_steps=None))
    taken = [matchmaker.change_population({"main": 1}, {"main": steps}).freeze for steps in (0, 120, 150, 220)]
    assert taken == [{"main@1": "main"}, {"main@2": "main"}, {}, {"main@3": "main"}]


@pytest.mark.parametrize(("oracle_from", "to"), [("fresh", "fresh"), ("initial", "initial"), ("latest", None)])
def test_an_oracle_begins_again_after_the_snapshot_that_ends_its_iteration(oracle_from: str, to: str | None) -> None:
    mode = mf.PSRO(games=1, agent_steps=100, oracle_from=oracle_from)  # type: ignore[arg-type]
    league = Exact(PENNIES, mode, initial=0)
    assert not league.resets, "the initial policies have learned nothing"
    league.iterate()
    assert league.resets == ([] if to is None else [mf.Reset("row", to), mf.Reset("column", to)])
    assert league.matchmaker.reset_policies() == ([] if to is None else ["row", "column"])
    assert mode.reset_after_snapshot("row", RNG) is None
    assert not league.matchmaker.resets()


def window(payoffs: Payoffs, policy: str, value: float) -> None:
    for _ in range(5):
        payoffs.add(Game((policy, "column"), (value, -value), 1))


def test_patience_ends_an_iteration_when_returns_no_longer_rise() -> None:
    mode = mf.PSRO(agent_steps=100, patience=2)
    members = members_of({"row": 1, "column": 1}, PAIR, ORACLES)
    payoffs = Payoffs(PAIR, ["row", "column"])
    view = mf.LeagueView(members, payoffs)
    ended = []
    # The column's returns are the opposite ones, so they fall from the start.
    for number, value in enumerate([-1.0, -0.5, 0.0, 0.5, 0.4, 0.5, 0.6], 1):
        window(payoffs, "row", value)
        if value == 0.6:
            # As a reset does after the snapshot; the games after it are more than those before.
            payoffs.reset("row", 0)
            members.incarnations["row"] += 1
            for _ in range(9):
                window(payoffs, "row", value)
        since = 10 * number if number < 7 else 10
        ended.append(bool(mode.snapshots_due(view, {"row": since, "column": since})))
    assert ended == [False, False, False, False, False, True, False]
    assert mode.iteration == 1
    window(payoffs, "row", -1.0)
    assert not mode.snapshots_due(view, {"row": 20, "column": 20}), "the next iteration has its own windows"
    assert mode.state()["windows"]["row"]["means"] == pytest.approx([0.6, -1.0])


def test_state_through_bytes_continues_the_same() -> None:
    straight, resumed = (Exact(kuhn(), mf.PSRO(games=1, patience=9)) for _ in range(2))
    straight.nash_convs(2)
    resumed.mixtures, resumed.iterations = straight.mixtures, 2
    resumed.matchmaker.load_state(from_bytes(to_bytes(straight.matchmaker.state())))
    assert resumed.mode.meta == straight.mode.meta
    assert resumed.nash_convs(3) == straight.nash_convs(3)
    assert to_bytes(resumed.matchmaker.state()) == to_bytes(straight.matchmaker.state())


def test_before_the_first_solution_rivals_are_any_members() -> None:
    members = members_of({"row": 2, "column": 1}, PAIR, ORACLES)
    view = mf.LeagueView(members, Payoffs(PAIR))
    drawn = Counter(mf.PSRO().rival(view, "column", 0, np.random.default_rng(seed)) for seed in range(3000))
    assert agree(drawn, dict.fromkeys(["random", "row@1", "row@2"], 1 / 3))
    nobody = mf.LeagueView(Members(PAIR, ORACLES, live=list(ORACLES)), Payoffs(PAIR))
    assert mf.PSRO().rival(nobody, "column", 0, RNG) is None


def filled(populations: list[list[str]], returns: np.ndarray) -> Payoffs:
    payoffs = Payoffs(default_sides([f"player_{number}" for number in range(len(populations))]))
    for index in np.ndindex(returns.shape[1:]):
        profile = tuple(names[number] for names, number in zip(populations, index, strict=True))
        for noise in (-0.01, 0.01):
            payoffs.add(Game(profile, tuple(returns[(slice(None), *index)] + noise), 1))
    return payoffs


def test_rectified_rivals_are_drawn_for_one_member_of_the_support_by_each_oracle() -> None:
    fits = {name: ["player_0"] for name in ("first", "second", "third")} | {"column": ["player_1"]}
    members = members_of({"first": 1, "second": 1, "third": 1, "column": 3}, PAIR, fits | {"random": []})
    mode = mf.PSRO("rectified")
    populations = mode.populations(members)
    assert populations == [["first@1", "second@1", "third@1"], ["column@1", "column@2", "column@3"]]
    # The likeliest members are paper (0.625), scissors (0.3125), rock (0.0625).
    mode.solve(members, filled(populations, np.stack([BIASED, -BIASED])))
    view = mf.LeagueView(members, Payoffs(PAIR))
    expected = {
        "first": {"column@1": 1 / 11, "column@2": 10 / 11},
        "second": {"column@2": 2 / 3, "column@3": 1 / 3},
        "third": {"column@1": 1 / 6, "column@3": 5 / 6},
    }
    for oracle, mixture in expected.items():
        drawn = Counter(mode.rival(view, oracle, 1, np.random.default_rng(seed)) for seed in range(2000))
        assert agree(drawn, mixture)


def test_alpharank_of_interchangeable_sides_is_of_one_population() -> None:
    members = members_of({"main": 3})
    names = ["random", "main@1", "main@2", "main@3"]
    returns = np.zeros((4, 4))
    # A cycle of snapshots; `random` loses to two of them and beats one.
    for winner, loser, value in [(1, 2, 1), (2, 3, 1), (3, 1, 1), (1, 0, 1), (2, 0, 1), (0, 3, 2)]:
        returns[winner, loser], returns[loser, winner] = value, -value
    expected = openspiel.compute([returns], use_inf_alpha=True, inf_alpha_eps=1e-6)[2]
    for symmetric in (True, False):
        payoffs = Payoffs(PAIR, symmetric=symmetric)
        for (i, one), (j, other) in product(enumerate(names), repeat=2):
            # The first seat gains 3, whichever member has it.
            payoffs.add(Game((one, other), (returns[i, j] + 3.0, -returns[i, j] - 3.0), 1))
        mode = mf.PSRO(solver="alpharank")
        mode.solve(members, payoffs)
        found = [[mixture[name] for name in names] for mixture in mode.meta]
        assert (found[0] == pytest.approx(expected, abs=1e-4)) == symmetric, found
        assert (found[0] == found[1]) == symmetric


@pytest.mark.parametrize("solver", ["uniform", "replicator", "prd", "alpharank"])
def test_solvers_for_any_number_of_roles_take_three(solver: str) -> None:
    members = members_of({"main": 1}, THREE)
    # The second member is worth 1 more than the first to each role, whatever the others do.
    returns = np.zeros((3, 2, 2, 2))
    for index in product(range(2), repeat=3):
        returns[(slice(None), *index)] = index
    mode = mf.PSRO(solver)  # type: ignore[arg-type]
    assert not mode.problems(members)
    populations = mode.populations(members)
    assert populations == [["random", "main@1"]] * 3
    mode.solve(members, filled(populations, returns))
    for mixture in mode.meta:
        assert sum(mixture.values()) == pytest.approx(1.0)
        assert mixture["main@1"] == pytest.approx(0.5) if solver == "uniform" else mixture["main@1"] > 0.9


def test_solvers_of_two_roles_are_refused_for_three() -> None:
    for solver in ("nash", "rectified"):
        (problem,) = mf.PSRO(solver).problems(members_of({"main": 1}, THREE))  # type: ignore[arg-type]
        assert "two sides of one role each" in problem
        assert "prd" in problem


def test_a_role_needs_an_oracle() -> None:
    (problem,) = mf.PSRO().problems(members_of({"row": 1}, PAIR, {"row": ["player_0"]}))
    assert "'player_1'" in problem


def test_nash_of_a_game_that_is_not_zero_sum_is_refused() -> None:
    members = members_of({"main": 1})
    mode = mf.PSRO()
    returns = np.stack([BIASED[:2, :2], -BIASED[:2, :2]])
    mode.solve(members, filled(mode.populations(members), returns + 0.5))
    assert mode.meta, "a constant sum changes nothing"
    returns[:, 1, 0] = 2.0
    with pytest.raises(mf.MarlflowError, match="sum to 4 for members 1 and 0") as caught:
        mf.PSRO().solve(members, filled(mode.populations(members), returns))
    assert "counted from 0, of random, main@1 and random, main@1" in str(caught.value)
    assert "use prd, replicator" in str(caught.value)


def test_noise_within_three_standard_errors_is_no_other_game() -> None:
    members, generator = members_of({"main": 1}), np.random.default_rng(4)
    mode, payoffs = mf.PSRO(), Payoffs(PAIR)
    for profile in product(*mode.populations(members)):
        for _ in range(50):
            payoffs.add(Game(profile, tuple(generator.normal(size=2)), 1))
    mode.solve(members, payoffs)
    assert len(mode.meta) == 2


def test_a_profile_whose_matches_all_broke_is_named() -> None:
    members = members_of({"main": 1})
    payoffs = filled([["random", "main@1"], ["random"]], np.zeros((2, 2, 1)))
    with pytest.raises(mf.MarlflowError, match="no payoff of random against main@1"):
        mf.PSRO().solve(members, payoffs)
