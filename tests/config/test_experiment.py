"""An experiment says at once what is of another kind than it should be."""

from __future__ import annotations

from typing import Any

import pytest

import marlflow as mf
from marlflow.env.games.cartpole_team import CartPoleTeam
from tests.sentences import refusals


def test_slips_of_the_pen_are_named_together() -> None:
    policies: Any = {"odd": mf.PPO(epochs=3)}
    mapping: Any = {"cart_*": "odd"}
    env: Any = dict
    named = refusals(mf.ConfigInvalid, mf.Experiment, env, policies, mapping)
    assert [problem.split(" ")[0] for problem in named] == ["env", "policies['odd']", "mapping"]
    assert "write Policy(PPO(...))" in named[1]
    assert "[Rule('adversary_*', 'hunters'), ...]" in named[2]


_policy: Any = mf.Policy


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            _policy("dqn"),
            "policies['cart'].algorithm is 'dqn', where an object is wanted; write Policy(algorithm=DQN())",
        ),
        (
            _policy(mf.PPO),
            "policies['cart'].algorithm is the class PPO, where an object is wanted; write Policy(algorithm=PPO())",
        ),
        (
            _policy("sarsa"),
            "policies['cart'].algorithm is 'sarsa', where an object is wanted; write Policy(algorithm=PPO())",
        ),
        (_policy(model="cnn"), "policies['cart'].model is 'cnn', where an object is wanted; write Policy(model=CNN())"),
        ("dqn", "policies['cart'] is 'dqn', not a Policy; write Policy(DQN())"),
        (mf.PPO, "policies['cart'] is the class PPO, not a Policy; write Policy(PPO())"),
    ],
)
def test_names_and_classes_in_place_of_objects_are_answered_with_what_is_wanted(policy: Any, said: str) -> None:
    assert refusals(mf.ConfigInvalid, mf.Experiment, mf.Env(dict), {"cart": policy}) == [said]


def test_an_environments_name_is_no_env() -> None:
    env: Any = "simple_tag"
    with pytest.raises(mf.ConfigInvalid, match=r"^env is 'simple_tag', not an Env; write Env\('simple_tag'\)$"):
        mf.Experiment(env)


def test_a_plain_experiment_is_one() -> None:
    assert mf.Experiment(mf.Env(dict)).policies == {}


def test_an_environment_in_place_of_its_factory_is_refused() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"factory is .*, which makes no environment; write Env\(CartPoleTeam, "):
        mf.Env(CartPoleTeam())  # type: ignore[arg-type]
