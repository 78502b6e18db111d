"""Functional environments give the numbers of the same games in plain Python, and are checked before they run."""

from functools import partial

import numpy as np
import pytest

from marlflow.env.functional.own import batched_env
from tests.env.both_versions import compare
from tests.env.functional_games import MOST_STEPS, MOST_TURNS, HotPotato, HotPotatoAlone, Walkers, WalkersAlone

GAMES = {
    "walkers": (WalkersAlone, partial(batched_env, make=Walkers, max_env_steps=MOST_STEPS)),
    "potato": (HotPotatoAlone, partial(batched_env, make=HotPotato, max_env_steps=MOST_TURNS)),
}


def chooser(seed):
    random = np.random.default_rng(seed)

    def choose(observation, mask, space):
        del observation
        return random.choice(np.flatnonzero(mask)) if mask is not None else random.integers(space.n)

    return choose


@pytest.mark.parametrize("name", list(GAMES))
def test_the_numbers_are_those_of_the_same_game_in_plain_python(name):
    alone, batched = GAMES[name]

    def without_state(num_envs):
        env = batched(num_envs)
        # An AEC game has no global state to compare.
        env.state_space = env.state_space if name == "walkers" else None
        return env

    assert compare(alone, without_state, range(60, 74), chooser(1)) > 100
