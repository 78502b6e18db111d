"""PettingZoo's own tests of the environments that marlflow brings; wrappers and those of other packages have theirs."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import pytest
from pettingzoo.test import api_test, parallel_api_test, seed_test

MATRIX_GAMES = product(("climbing", "penalty", "both", "qtran", "two_step"), (False, True))
PARALLEL: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("cartpole_family", "cartpole_team", "pendulum_team", "recall", "relay", "sacrifice")),
    ("cartpole_team", {"velocities": False}),
    *(("guess_number", {"num_agents": 2, "may_stop": may_stop}) for may_stop in (False, True)),
    *(("matrix_games", {"game": game, "as_one_agent": as_one_agent}) for game, as_one_agent in MATRIX_GAMES),
    ("toll", {"num_agents": 3}),
]


# An episode of the relay may end before everybody has joined; the others are about a Dict without a mask.
@pytest.mark.filterwarnings(
    "ignore:No agents present", "ignore:Observation is not a NumPy array", "ignore:Observation space for each agent"
)
@pytest.mark.parametrize(("name", "arguments"), PARALLEL, ids=str)
def test_the_parallel_form_passes(name: str, arguments: dict[str, Any]) -> None:
    parallel_api_test(import_module(f"marlflow.env.games.{name}").parallel_env(**arguments), num_cycles=200)


# PettingZoo's test warns that agents may be removed unseen, which its own conversion does, and of spaces that differ in
# size or are neither a Box nor Discrete.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "arguments"), [*PARALLEL, ("token_signal", {})], ids=str)
def test_the_aec_form_passes(name: str, arguments: dict[str, Any]) -> None:
    make_env = partial(import_module(f"marlflow.env.games.{name}").env, **arguments)
    api_test(make_env(), num_cycles=100)
    seed_test(make_env, num_cycles=20)
