"""Every batched version gives the numbers of the PettingZoo environment, for the same seeds and actions."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from marlflow.base.errors import ConfigInvalid
from marlflow.env.batched.board_games import ConnectFour
from marlflow.env.batched.single import as_pettingzoo
from marlflow.env.batched.versions import batched_maker
from marlflow.env.make import make_environment
from marlflow.env.wrappers.shipped import agent_indicator
from tests.env.both_versions import compare

MPE = "mpe2.{}.parallel_env"
CASES = [
    ("marlflow.env.games.cartpole_team.parallel_env", {}),
    ("marlflow.env.games.cartpole_team.parallel_env", {"num_agents": 1, "max_cycles": 9, "velocities": False}),
    (MPE.format("simple_spread_v3"), {}),
    (MPE.format("simple_spread_v3"), {"N": 5, "local_ratio": 0.3, "max_cycles": 40, "continuous_actions": True}),
    (MPE.format("simple_spread_v3"), {"N": 1}),
    (MPE.format("simple_tag_v3"), {"max_cycles": 60}),
    (
        MPE.format("simple_tag_v3"),
        {"num_good": 2, "num_adversaries": 4, "num_obstacles": 3, "continuous_actions": True},
    ),
    (MPE.format("simple_adversary_v3"), {}),
    (MPE.format("simple_adversary_v3"), {"N": 3, "continuous_actions": True}),
    (MPE.format("simple_speaker_listener_v4"), {}),
    (MPE.format("simple_speaker_listener_v4"), {"continuous_actions": True}),
    (MPE.format("simple_reference_v3"), {}),
    (MPE.format("simple_reference_v3"), {"local_ratio": 0.9, "continuous_actions": True}),
    ("marlflow.env.games.toll.parallel_env", {}),
    ("marlflow.env.games.toll.parallel_env", {"num_agents": 3}),
    ("marlflow.env.games.pendulum_team.parallel_env", {}),
    ("marlflow.env.games.pendulum_team.parallel_env", {"num_agents": 1, "max_cycles": 30}),
    *(
        ("marlflow.env.games.matrix_games.parallel_env", {"game": game, "as_one_agent": joint})
        for game in ("climbing", "penalty", "both", "qtran", "two_step")
        for joint in (False, True)
    ),
    ("pettingzoo.classic.rps_v2.parallel_env", {}),
    ("pettingzoo.classic.rps_v2.parallel_env", {"num_actions": 7, "max_cycles": 60}),
    ("pettingzoo.classic.connect_four_v3.env", {}),
    ("pettingzoo.classic.tictactoe_v3.env", {}),
]


@pytest.mark.parametrize(("factory", "arguments"), CASES, ids=str)
def test_the_numbers_are_those_of_pettingzoo(factory, arguments):
    pytest.importorskip(factory.partition(".")[0])
    random = np.random.default_rng(7)

    def choose(observation, mask, space):
        if mask is not None:
            return random.choice(np.flatnonzero(mask))
        space.seed(int(random.integers(2**31)))
        return space.sample()

    seeds = random.integers(2**31, size=14).tolist()
    # gymnasium rounds the square of a torque otherwise.
    tolerance = 1e-9 if "pendulum" in factory else 0.0
    make_batched = batched_maker(factory, arguments, (), True)
    steps = compare(partial(make_environment, factory, arguments), make_batched, seeds, choose, tolerance)
    assert steps >= len(seeds)


def test_a_game_that_begins_again_shows_nobody_the_old_board() -> None:
    env = as_pettingzoo(ConnectFour(1))
    for _ in range(2):
        env.reset(seed=1)
        assert not any(np.any(env.observe(player)) for player in env.agents)
        for column in range(4):
            env.step(column)


def test_a_version_takes_wrappers_if_it_says_so() -> None:
    def singles() -> Any:
        raise AssertionError("not called")

    def version(num_envs: int) -> Any:
        raise AssertionError("not called")

    singles.batched = version  # type: ignore[attr-defined]
    assert batched_maker(singles, {}, [agent_indicator], "auto") is None
    version.takes_wrappers = True  # type: ignore[attr-defined]
    made = batched_maker(singles, {}, [agent_indicator], "auto")
    assert made is not None
    assert made.wrappers == (agent_indicator,)


@pytest.mark.parametrize(
    ("arguments", "is_made"),
    [
        ({}, True),
        ({"drawn": False}, True),
        ({"style": None}, True),
        ({"drawn": True}, False),
        ({"shaped": False}, False),
        ({"shaped": None}, False),
        ({"bonus": 0}, False),
        ({"bonus": 0.0}, False),
    ],
)
def test_an_argument_that_a_version_does_not_have_is_off_as_it_is_by_default(
    arguments: dict[str, Any], is_made: bool
) -> None:
    def singles(bonus: float = 1.0, shaped: bool = True, drawn: bool = False, style: str | None = None) -> Any:
        raise AssertionError("not called")

    def version(num_envs: int) -> Any:
        raise AssertionError("not called")

    singles.batched = version  # type: ignore[attr-defined]
    assert (batched_maker(singles, arguments, (), "auto") is not None) == is_made
    if not is_made:
        with pytest.raises(ConfigInvalid, match=f"the batched version of .* has no argument '{next(iter(arguments))}'"):
            batched_maker(singles, arguments, (), True)
