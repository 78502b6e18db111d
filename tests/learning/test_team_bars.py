"""Teams come to the known answers of small games, or to what they lack: benchmarks/team_bars.py in short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import team_bars
from benchmarks.composition_cases import CASES as COMPOSITION
from benchmarks.equilibria import checked
from benchmarks.team_answers import BOTH, TWO_STEP, additive_fit, relay_values
from benchmarks.team_case import Case
from benchmarks.team_cases import CASES
from benchmarks.team_values import TeamValues, fits, relay_error, two_step_fits

SEED = 0
SHORT = (
    *("two_step_dqn", "two_step_vdn", "two_step_qmix", "both_vdn", "both_qmix", "climbing_one_agent", "climbing_mappo"),
    *("climbing_happo", "recall_recurrent_mappo", "recall_mappo", "sacrifice_ppo"),
)


@pytest.mark.learning
@pytest.mark.parametrize("name", SHORT)
def test_teams_come_to_known_answers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_bars, "FOLDER", tmp_path)
    assert team_bars.report(CASES[name], [SEED])


@pytest.mark.parametrize(
    "name",
    [
        *("two_step_qmix", "relay_qmix", "sacrifice_mappo", "recall_recurrent_mappo", "spread_mappo"),
        *("climbing_happo", "speaker_listener_maddpg", "speaker_listener_ddpg", "speaker_listener_happo"),
        *("cliff_shielded", "corridor_memoryless_dqn", "sign_ddpg_above_dqn", "guess_number_archer"),
    ],
)
def test_cases_are_runs_that_pass_all_checks(name: str) -> None:
    case = {**CASES, **COMPOSITION}[name]
    made = checked(case.words)
    assert made.experiment.stop.env_steps == case.env_steps
    assert case.policy in made.players


def test_bars_include_their_bounds_and_nothing_beyond() -> None:
    exact, high = Case("exact", (), 7, 7), Case("high", (), high=0.35)
    assert [exact.is_met(value) for value in (6.99, 7.0, 7.01)] == [False, True, False]
    assert [high.is_met(value) for value in (-5.0, 0.35, 0.36)] == [True, True, False]
    assert (exact.bar, high.bar) == ("7", "<= 0.35")


class Known:
    """Stands in for a TeamQNetwork: returns the given value of each row's state, presence and actions."""

    def __init__(self, value: Callable[[list[float], list[bool], list[int]], float]) -> None:
        self._value = value

    def values(self, columns: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        # Each action's value is its number, which tells `mixed` what was taken.
        rows, agents = columns["p:present"].shape
        return [torch.arange(3.0).expand(rows, agents, 3)]

    def present(self, columns: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return columns["p:present"].float()

    def mixed(self, q: torch.Tensor, present: torch.Tensor, columns: Mapping[str, Any]) -> torch.Tensor:
        rows = zip(columns["state"].tolist(), present.bool().tolist(), q.int().tolist(), strict=True)
        return torch.tensor([self._value(*row) for row in rows])


def matrix_network(*tables: Any) -> TeamValues:
    return TeamValues(
        Known(lambda state, present, taken: float(tables[int(np.argmax(state))][taken[0]][taken[1]])), "p"
    )


def test_tables_of_a_network_are_compared_entry_by_entry() -> None:
    error, text = fits(BOTH)(matrix_network(BOTH))
    assert error == 0.0
    assert "10.0" in text
    assert fits(BOTH)(matrix_network([[0, 0], [0.5, 10]]))[0] == 0.5
    assert fits(BOTH)(matrix_network(additive_fit(BOTH)))[0] == 2.5


def test_the_first_step_of_the_two_step_game_is_worth_the_best_of_its_matrix() -> None:
    first = [[6.93, 6.93], [7.92, 7.92]]
    assert two_step_fits(np.asarray)(matrix_network(first, *TWO_STEP))[0] == pytest.approx(0.0, abs=1e-6)
    fitted = [additive_fit(table) for table in TWO_STEP]
    alone = [[6.93, 6.93], [6.435, 6.435]]
    assert two_step_fits(additive_fit)(matrix_network(alone, *fitted))[0] == pytest.approx(0.0, abs=1e-6)
    assert two_step_fits(np.asarray)(matrix_network(np.transpose(first), *TWO_STEP))[0] == pytest.approx(0.99)


def test_values_of_the_relay_are_compared_in_each_state_that_occurs() -> None:
    joint, early = relay_values(3, 0.9).joint, relay_values(3, 0.9, ends="any").values

    def true(state: list[float], present: list[bool], taken: list[int]) -> float:
        kinds = tuple(int(kind) for kind in np.reshape(state, (3, 3)).argmax(1))
        assert [kind == 1 for kind in kinds] == present
        chosen = tuple(action for action, here in zip(taken, present, strict=True) if here)
        return joint[kinds, chosen]

    def one_death_ends(state: list[float], present: list[bool], taken: list[int]) -> float:
        return early[tuple(int(kind) for kind in np.reshape(state, (3, 3)).argmax(1))]

    error, text = relay_error(TeamValues(Known(true), "p"))
    assert error < 1e-6
    assert "at the start 12.51, expected 12.51" in text
    assert relay_error(TeamValues(Known(one_death_ends), "p"))[0] > 0.2
