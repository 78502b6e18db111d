"""Uniformly random play of games whose exact values are known, through the rollout worker."""

from collections import defaultdict
from fractions import Fraction

import numpy as np
import pyspiel
import pytest

from marlflow.env.simulators import openspiel
from marlflow.policy.scripted import RandomActor
from tests.sampling.workers import lone_worker

NUM_ENVS, TICKS = 64, 128


def value(state):
    """The mean return of player 0 from here, if all choose uniformly."""
    if state.is_terminal():
        return Fraction(state.returns()[0])
    if state.is_chance_node():
        outcomes = state.chance_outcomes()
        return sum(Fraction(p).limit_denominator(1000) * value(state.child(action)) for action, p in outcomes)
    legal = state.legal_actions()
    return sum(value(state.child(action)) for action in legal) / len(legal)


def worker_of(game, num_envs=NUM_ENVS):
    actor = RandomActor(openspiel.env(game).action_space("player_0"))
    return lone_worker(lambda: openspiel.env(game), actor, range(num_envs))


@pytest.mark.parametrize(
    ("game", "exact", "games_per_env"),
    [("kuhn_poker", 0.125, 320), pytest.param("leduc_poker", -0.078125, 160, marks=pytest.mark.slow)],
)
def test_random_play_is_worth_what_the_game_tree_says(game, exact, games_per_env):
    assert value(pyspiel.load_game(game).new_initial_state()) == exact
    worker = worker_of(game)
    # The first so many games of every environment: whoever counts what a number of ticks brings counts short games too
    # often.
    of_env = defaultdict(list)
    while min(map(len, of_env.values()), default=0) < games_per_env:
        for episode in worker.collect(TICKS)[0].episodes:
            assert sum(episode.returns.values()) == 0
            of_env[episode.env].append(episode.returns["player_0"])
        for env_index in range(NUM_ENVS):
            of_env[env_index] += []
    returns = np.array([one[:games_per_env] for one in of_env.values()])
    assert returns.shape == (NUM_ENVS, games_per_env)
    assert abs(returns.mean() - exact) < 3 * returns.std() / np.sqrt(returns.size)


@pytest.mark.parametrize(
    "game",
    ["leduc_poker", "matrix_mp", "goofspiel(num_cards=4)", "coop_box_pushing(horizon=12)", "kuhn_poker(players=3)"],
)
def test_rows_have_all_that_was_received(game):
    worker = worker_of(game, num_envs=4)
    rows, returns, decisions = defaultdict(list), {}, 0
    for ticks in (1, 2, 3, 50, 5, 7, 60):
        receipt, batches = worker.collect(ticks)
        batch = batches["all"]
        decisions += receipt.env_steps
        assert receipt.policies["all"].reward_unattributed == 0
        for env_index, episode, agent, reward in zip(
            *(batch[n] for n in ("env", "episode", "agent", "reward")), strict=True
        ):
            rows[env_index, episode, f"player_{agent}"].append(reward)
        for one in receipt.episodes:
            returns |= {(one.env, one.episode, agent): total for agent, total in one.returns.items()}
    assert len(returns) > 16
    for key, total in returns.items():
        np.testing.assert_allclose(sum(map(float, rows[key])), total, rtol=0, atol=1e-6)
    assert 0 <= decisions - sum(map(len, rows.values())) <= 4 * 3  # one open row for each agent and environment
