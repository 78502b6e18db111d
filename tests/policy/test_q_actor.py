import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.q import DuelingHead, epsilon_greedy, epsilon_of_env
from tests.policy.row_random import row_random

ROWS = 20_000
Q = np.tile(np.array([[1.0, 5.0, 9.0, 3.0]], np.float32), (ROWS, 1))


def test_exploration_has_the_stated_frequencies() -> None:
    action, logp = epsilon_greedy(Q, None, 0.2, row_random(ROWS))
    expected = np.array([0.05, 0.05, 0.85, 0.05])
    np.testing.assert_allclose(np.bincount(action, minlength=4) / ROWS, expected, atol=0.01)
    np.testing.assert_allclose(logp, np.log(expected)[action], rtol=1e-5)


def test_illegal_actions_are_neither_best_nor_random() -> None:
    mask = np.tile(np.array([[True, True, False, True]]), (ROWS, 1))
    action, logp = epsilon_greedy(Q, mask, 0.3, row_random(ROWS))
    expected = np.array([0.1, 0.8, 0.0, 0.1])
    np.testing.assert_allclose(np.bincount(action, minlength=4) / ROWS, expected, atol=0.01)
    np.testing.assert_allclose(np.exp(logp), expected[action], rtol=1e-5)


@pytest.mark.parametrize("epsilon", [1e-12, 0.1, 1.0])
def test_the_extreme_draws_stay_legal(epsilon: float) -> None:
    class Extreme(mf.RowRandom):
        def uniform(self) -> np.ndarray:
            return np.array([0.0, np.nextafter(epsilon, 0.0), min(epsilon, 1.0 - 2.0**-53), 1.0 - 2.0**-53])

    mask = np.array([[False, True, True, False]] * 4)
    action, _ = epsilon_greedy(Q[:4], mask, epsilon, Extreme(np.zeros(4, np.uint64), np.zeros(4)))
    assert mask[np.arange(4), action].all()


def test_greedy_draws_nothing_and_is_certain() -> None:
    action, logp = epsilon_greedy(Q, None, 0.0, row_random(ROWS))
    assert set(action.tolist()) == {2}
    assert not logp.any()


def test_no_legal_action_is_an_error() -> None:
    with pytest.raises(mf.MarlflowError, match="no legal action"):
        epsilon_greedy(Q[:1], np.zeros((1, 4), bool), 0.0, row_random(ROWS))


@pytest.mark.parametrize("dueling", [False, True])
def test_actor_follows_its_schedule_and_mode(dueling: bool) -> None:
    network = mf.QNetwork(Spaces(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(4)), mf.MLP((8,)), dueling, seed=0)
    obs = np.random.default_rng(0).standard_normal((ROWS, 3)).astype(np.float32)
    with torch.no_grad():
        best = network(torch.from_numpy(obs)).argmax(1).numpy()
    greedy = network.actor.act(obs, None, None, "greedy", row_random(ROWS))
    assert np.array_equal(greedy.action, best)
    network.actor.set_schedule({"epsilon": 0.4, "unknown": 3.0})
    explored = network.actor.act(obs, None, None, "explore", row_random(ROWS))
    assert np.mean(explored.action == best) == pytest.approx(0.7, abs=0.02)
    assert set(np.round(np.exp(explored.behavior_logp), 4)) == {np.float32(0.7), np.float32(0.1)}


def test_dueling_head_is_value_plus_centered_advantage() -> None:
    head = DuelingHead(2, 3, torch.Generator().manual_seed(0))
    x = torch.tensor([[0.3, -0.7]])
    advantage = head.advantage(x)[0].tolist()
    expected = [head.state(x).item() + a - math.fsum(advantage) / 3 for a in advantage]
    assert head(x)[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_each_copy_has_its_step_of_the_ladder() -> None:
    found = epsilon_of_env(0.4, np.arange(8), num_envs=8, ladder=7.0)
    np.testing.assert_allclose(found, [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536])
    np.testing.assert_allclose(epsilon_of_env(0.4, np.zeros(2, np.int64), num_envs=1, ladder=7.0), [0.4, 0.4])
    assert (epsilon_of_env(1e-300, np.array([0, 1]), num_envs=2, ladder=7.0) > 0.0).all()


def test_rows_explore_as_their_copy_does_and_say_so_exactly() -> None:
    network = mf.QNetwork(Spaces(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(4)), mf.MLP((8,)), False, seed=0)
    network.actor.ladder = 1.0
    network.actor.set_schedule({"epsilon": 0.4, "envs": 2})
    obs = np.random.default_rng(0).standard_normal((ROWS, 3)).astype(np.float32)
    best = network.actor.act(obs, None, None, "greedy", row_random(ROWS)).action
    env_indices = np.arange(ROWS) % 2
    random = mf.RowRandom(np.arange(ROWS, dtype=np.uint64), np.zeros(ROWS), env_indices)
    acted = network.actor.act(obs, None, None, "explore", random)
    for env_index, epsilon in enumerate((0.4, 0.16)):
        own = env_indices == env_index
        assert np.mean(acted.action[own] == best[own]) == pytest.approx(1.0 - 0.75 * epsilon, abs=0.02)
        expected = np.where(acted.action[own] == best[own], 1.0 - 0.75 * epsilon, 0.25 * epsilon)
        np.testing.assert_allclose(np.exp(acted.behavior_logp[own]), expected, rtol=1e-5)
    parts = [
        mf.RowRandom(np.arange(ROWS, dtype=np.uint64)[p], np.zeros(ROWS)[p], env_indices[p])
        for p in (slice(7), slice(7, None))
    ]
    joined = network.actor.act(obs, None, None, "explore", mf.RowRandom.joined(parts))
    np.testing.assert_array_equal(joined.action, acted.action)
    np.testing.assert_array_equal(joined.behavior_logp, acted.behavior_logp)
