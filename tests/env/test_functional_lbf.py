"""The functional LBF beside the package lbforaging, from the same states, by the same actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marlflow.env.functional.lbf import ForagingGame, ForagingState
from marlflow.env.simulators import lbf

pytest.importorskip("lbforaging")

GAMES = {
    "full sight": ("Foraging-10x10-3p-3f-v3", {}),
    "near sight": ("Foraging-2s-8x8-3p-4f-v3", {}),
    "cooperation": ("Foraging-8x8-2p-2f-coop-v3", {}),
    "crowded, with penalties": ("Foraging-5x5-4p-4f-v3", {"penalty": 0.25, "normalize_reward": False}),
    "levels unseen": (
        "Foraging-2s-6x6-3p-2f-v3",
        {"observe_agent_levels": False, "max_food_level": 2},
    ),
    "its own limit": ("Foraging-6x6-2p-3f-v3", {"max_episode_steps": 7}),
}


def put(game, state: ForagingState) -> None:
    """Make the state of lbforaging that of the functional game."""
    for player, place, level in zip(game.players, state.agents, state.agent_levels, strict=True):
        player.setup(tuple(int(at) for at in place), int(level), game.field_size)
        player.reward = 0
    game.field = np.zeros(game.field_size, np.int32)
    for place, level in zip(state.foods, state.food_levels, strict=True):
        game.field[tuple(place)] += int(level)
    game._food_spawned, game.current_step, game._game_over = int(state.spawned), int(state.env_steps), False
    game._gen_valid_moves()


@pytest.mark.parametrize("kind", GAMES)
def test_it_is_lbforagings_game(kind: str) -> None:
    id, arguments = GAMES[kind]
    game = lbf.parallel_env(id, arguments=arguments).game
    ours = ForagingGame(game)
    reset, step = jax.jit(ours.reset), jax.jit(ours.step)
    rng, ends, loads = np.random.default_rng(0), 0, 0
    for episode in range(12):
        state, seen = reset(jax.random.PRNGKey(episode))
        put(game, state)
        np.testing.assert_array_equal(seen.observations["agent"], np.stack(game._make_gym_obs()))
        for _ in range(40):
            actions = rng.choice(6, len(game.players), p=[0.05, 0.15, 0.15, 0.15, 0.15, 0.35])
            if rng.random() < 0.5:  # towards a food, so that some are eaten
                actions = np.array([_towards_food(game, player) for player in game.players])
            expected, rewards, over, _, _ = game.step(tuple(int(action) for action in actions))
            state, seen = step(jax.random.PRNGKey(0), state, {"agent": jnp.asarray(actions)})
            np.testing.assert_array_equal(seen.observations["agent"], np.stack(expected))
            np.testing.assert_allclose(seen.rewards["agent"], rewards, rtol=1e-6)
            assert bool(seen.terminated["agent"]) == over
            loads += int(np.count_nonzero(rewards))
            if over:
                ends += 1
                break
    assert ends
    assert loads > 8


def _towards_food(game, player) -> int:
    foods = np.argwhere(game.field > 0)
    row, column = foods[np.abs(foods - player.position).sum(1).argmin()] - player.position
    if abs(row) + abs(column) == 1:
        return 5
    return (2 if row > 0 else 1) if abs(row) > abs(column) else (4 if column > 0 else 3)


@pytest.mark.parametrize(
    "kind",
    ["crowded, with penalties", *(pytest.param(kind, marks=pytest.mark.slow) for kind in GAMES if "pen" not in kind)],
)
def test_initial_states_are_distributed_as_in_lbforaging(kind: str) -> None:
    id, arguments = GAMES[kind]
    game = lbf.parallel_env(id, arguments=arguments).game
    states, _ = jax.jit(jax.vmap(ForagingGame(game).reset))(jax.random.split(jax.random.PRNGKey(1), 2000))
    ours = [_figures(*each) for each in zip(*(np.asarray(leaf) for leaf in states[:4]), strict=True)]
    theirs = []
    for seed in range(600):
        for player in game.players:
            player.position = None  # else nobody begins where another one was
        game.reset(seed=seed)
        foods = np.argwhere(game.field > 0)
        places, levels = [player.position for player in game.players], [player.level for player in game.players]
        theirs.append(_figures(np.array(places), np.array(levels), foods, game.field[tuple(foods.T)]))
    ours, theirs = np.array(ours), np.array(theirs)
    error = np.sqrt(ours.var(0) / len(ours) + theirs.var(0) / len(theirs)) + 1e-9
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4.5 * error).all()


def _figures(agents, agent_levels, foods, food_levels):
    there = food_levels > 0
    apart = np.abs(foods[there][:, None] - foods[there][None]).sum(-1)
    return (
        *agents.mean(0),
        *agents[0],
        agent_levels.mean(),
        (agent_levels == agent_levels[0]).mean(),
        there.sum(),
        *foods[there].mean(0),
        *foods[there].std(0),
        food_levels.sum(),
        (food_levels[there] == food_levels.max()).mean(),
        apart.mean(),
        np.abs(agents[:, None] - foods[there][None]).sum(-1).min(),
    )
