"""Matches played by a rollout worker: one call for all, by members that act as they are meant to."""

import asyncio
from itertools import product

import numpy as np
import pytest

from marlflow.league.matches import Matches, all_profiles, until_known
from marlflow.league.payoffs import Payoffs
from marlflow.league.psro import PSRO
from marlflow.league.ratings import Ratings
from marlflow.policy.actor import EvaluationModes
from tests.league.games import kuhn, nash_conv
from tests.league.kuhn_play import UNIFORM, KuhnWorkers, pure
from tests.league.population import PAIR
from tests.league.test_psro import Exact


def play(workers: KuhnWorkers, games: int, modes: EvaluationModes = "sampled") -> Matches:
    names = list(workers.frozen)
    matches = Matches(Payoffs(PAIR), Ratings(), modes)
    matches.request(until_known(all_profiles([names, names]), matches, games))
    while (batch := matches.due()) is not None:
        matches.observe(asyncio.run(workers.evaluate(batch)))
    return matches


def test_a_matrix_is_one_call_and_its_means_are_the_expected_returns() -> None:
    strategies = [0, 9, 27, 63, 38]
    workers = KuhnWorkers({f"main@{number}": pure(number) for number in strategies})
    matches = play(workers, games=150)
    assert workers.calls == [25 * 150]
    exact = kuhn()
    for row, column in product(strategies, strategies):
        means, errors = matches.payoffs.returns((f"main@{row}", f"main@{column}"))
        assert means[0] == -means[1]
        # Strategies are pure, so only the cards are random; equal returns of all deals have no error.
        assert abs(means[0] - exact[row, column]) <= 5 * errors[0]


def test_members_act_as_they_are_meant_to() -> None:
    # In greedy games the uniform policy always passes, as the first pure strategy does.
    workers = KuhnWorkers({"main@1": UNIFORM, "main@2": pure(63)})
    passes = play(workers, 40, "greedy").payoffs.returns(("main@1", "main@2"))
    assert passes[0].tolist() == [-1.0, 1.0]
    mixes = play(workers, 40, "sampled").payoffs
    assert mixes.returns(("main@1", "main@2"))[1].min() > 0.1
    by_entry = play(workers, 40, {"main@1": "greedy", "main": "sampled"}).payoffs
    assert by_entry.returns(("main@1", "main@2"))[0].tolist() == [-1.0, 1.0]
    by_policy = play(workers, 40, {"main": "sampled"}).payoffs
    assert by_policy.cells.keys() == mixes.cells.keys()
    for profile, cell in mixes.cells.items():
        assert by_policy.cells[profile] == cell


class Sampled(Exact):
    """Best responses by enumeration, and matches played by a worker."""

    def play_matches(self) -> None:
        flats = {name: self.parameters(name) for _, name in self.mixtures}
        workers = KuhnWorkers(flats)
        while (batch := self.matchmaker.matches_due()) is not None:
            self.matchmaker.observe_matches(asyncio.run(workers.evaluate(batch)))

    def parameters(self, name: str) -> np.ndarray:
        if name == "random":
            return UNIFORM
        role = 0 if name.startswith("row") else 1
        return pure(int(self.mixtures[role, name].argmax()))


def test_psro_with_sampled_matches_nearly_solves_kuhn_poker() -> None:
    league = Sampled(kuhn(), PSRO(games=60))
    # The best so far: it may rise between iterations.
    assert min(league.nash_convs(8)) < 0.2
    cells = league.matchmaker.matches.payoffs.cells
    assert {cell.games for cell in cells.values()} == {60}
    row, column = league.strategies()
    assert nash_conv(league.game, row, column) < 0.5
    assert row @ league.game @ column == pytest.approx(-1 / 18, abs=0.2)
