"""Payoffs of the matrix games, all joint actions enumerated, and what factored learners make of them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.team_answers import additive_fit, independent_choice
from marlflow.env.games.matrix_games import parallel_env

CLIMBING = [[11, -30, 0], [-30, 7, 0], [0, 6, 5]]
PENALTY = [[-50, 0, 10], [0, 2, 0], [10, 0, -50]]
BOTH = [[0, 0], [0, 10]]
QTRAN = [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]
LEFT, RIGHT = [[7, 7], [7, 7]], [[0, 1], [1, 8]]
TABLES = {"climbing": CLIMBING, "penalty": PENALTY, "both": BOTH, "qtran": QTRAN}


@pytest.mark.parametrize("game", TABLES)
@pytest.mark.parametrize("as_one_agent", [False, True])
def test_both_agents_receive_the_entry_that_they_choose(game: str, as_one_agent: bool) -> None:
    env = parallel_env(game, penalty=-50.0, as_one_agent=as_one_agent)
    size = len(TABLES[game])
    for row, column in product(range(size), repeat=2):
        env.reset()
        actions = {"team": row * size + column} if as_one_agent else {"agent_0": row, "agent_1": column}
        _, rewards, terminations, truncations, _ = env.step(actions)
        assert rewards == dict.fromkeys(env.possible_agents, TABLES[game][row][column])
        assert all(terminations.values())
        assert not any(truncations.values())
        assert env.agents == []


def test_in_the_two_step_game_only_the_first_agent_chooses_the_matrix() -> None:
    env = parallel_env("two_step")
    for first, ignored, row, column in product(range(2), repeat=4):
        observations, _ = env.reset()
        np.testing.assert_array_equal(env.state(), [1, 0, 0])
        assert set(env.agents) == set(observations) == {"agent_0", "agent_1"}
        observations, rewards, terminations, _, _ = env.step({"agent_0": first, "agent_1": ignored})
        assert set(rewards.values()) == {0.0}
        assert not any(terminations.values())
        state = [0, 1 - first, first]
        np.testing.assert_array_equal(env.state(), state)
        np.testing.assert_array_equal(observations["agent_0"], [*state, 1, 0])
        np.testing.assert_array_equal(observations["agent_1"], [*state, 0, 1])
        _, rewards, terminations, _, _ = env.step({"agent_0": row, "agent_1": column})
        assert rewards == dict.fromkeys(("agent_0", "agent_1"), (LEFT, RIGHT)[first][row][column])
        assert all(terminations.values())


def test_an_unknown_game_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="there is no matrix game 'climbin'; did you mean 'climbing'"):
        parallel_env("climbin")


@pytest.mark.parametrize("payoffs", [CLIMBING, PENALTY, BOTH, QTRAN, RIGHT])
def test_the_additive_fit_is_that_of_least_squares(payoffs: list[list[float]]) -> None:
    size = len(payoffs)
    design = np.zeros((size * size, 2 * size))
    for index, (row, column) in enumerate(product(range(size), repeat=2)):
        design[index, [row, size + column]] = 1.0
    found = design @ np.linalg.lstsq(design, np.ravel(payoffs), rcond=None)[0]
    np.testing.assert_allclose(additive_fit(payoffs).ravel(), found, atol=1e-9)


def test_what_learners_without_a_mixer_are_known_to_choose() -> None:
    """The bars of benchmarks/team_bars.py; figures of the two-step game are near those of Rashid et al., table 1b."""
    np.testing.assert_allclose(additive_fit(RIGHT), [[-1.5, 2.5], [2.5, 6.5]])
    np.testing.assert_allclose(additive_fit(BOTH), [[-2.5, 2.5], [2.5, 7.5]])
    row, column = independent_choice(CLIMBING)
    assert CLIMBING[row][column] == 5
    assert additive_fit(CLIMBING).argmax() == 8
    for penalty in (-25, -50, -100):
        payoffs = [[penalty, 0, 10], [0, 2, 0], [10, 0, penalty]]
        row, column = independent_choice(payoffs)
        assert payoffs[row][column] == 2
    # In the right matrix of the two-step game, each agent alone expects 4.5 of its better action: less than 7.
    assert np.mean(RIGHT, axis=1).max() == 4.5
