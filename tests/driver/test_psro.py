"""Runs of PSRO: snapshots, matches before the next round, meta-strategies, resets, and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from tests.driver.psro_runs import league_of, meta_strategies, psro_run
from tests.driver.resumed_runs import resumed_exactly
from tests.league.games import BIASED, PENNIES, nash_conv

BIASED_NASH = [0.0625, 0.625, 0.3125]
GAMES = {"matrix_mp": (PENNIES, 0.06), "matrix_brps": (BIASED, 0.04)}


def short(env_steps: int, **changes: Any) -> Any:
    """About three iterations in 2,000 env steps."""
    return psro_run("matrix_brps", env_steps, mf.PSRO(agent_steps=300, games=12), **changes)


def test_a_round_waits_for_the_matches_of_its_population(tmp_path: Path) -> None:
    result = mf.train(short(2_000), tmp_path)
    league = league_of(tmp_path)
    iterations = league["mode"]["iteration"]
    assert iterations >= 2
    names = [f"oracle@{number}" for number in range(1, iterations + 2)]
    assert [list(mixture) for mixture in league["mode"]["meta"]] == [names, names]
    counts = {tuple(profile): int(row[0]) for profile, row in zip(*_cells(league["matches"]), strict=True)}
    assert counts == {(one, other): 12 for one in names for other in names}
    assert league["matches"]["next"] == 12 * len(names) ** 2
    assert league["members"]["incarnations"] == {"oracle": iterations}, "each iteration begins from fresh parameters"
    # Rounds have 64 env steps; matches are no training.
    assert 2_000 <= result.metrics["env_steps"] < 2_064
    # The training table has the games of the running iteration only, and no game between snapshots.
    assert all("oracle" in profile for profile in league["payoffs"]["cells"]["profiles"])


def _cells(tree: Any) -> tuple[Any, Any]:
    return tree["payoffs"]["cells"]["profiles"], tree["payoffs"]["cells"]["counts"]


def test_a_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    """From before the first snapshot is taken and the oracle reset, and from within an iteration."""
    assert len(list(resumed_exactly(short(2_000), tmp_path, [640, 960]))) == 2


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("game", GAMES)
def test_the_meta_strategies_are_nearly_an_equilibrium(game: str, seed: int, tmp_path: Path) -> None:
    mf.train(psro_run(game, 30_000, mf.PSRO(agent_steps=2_000, games=500), seed=seed), tmp_path)
    matrix, bar = GAMES[game]
    first, second = meta_strategies(tmp_path, len(matrix))
    assert nash_conv(matrix, first, second) <= bar
    if game == "matrix_brps":
        for mixture in (first, second):
            np.testing.assert_allclose(mixture, BIASED_NASH, atol=0.05)
