"""An experiment says at once what is of another kind than it should be."""

from __future__ import annotations

from typing import Any

import pytest

from marlflow.algorithms.ppo import PPO
from marlflow.base.errors import ConfigInvalid
from marlflow.experiment.experiment import Env, Experiment


def test_slips_of_the_pen_are_named_together() -> None:
    policies: Any = {"odd": PPO(epochs=3)}
    mapping: Any = {"cart_*": "odd"}
    env: Any = dict
    with pytest.raises(ConfigInvalid) as caught:
        Experiment(env, policies, mapping)
    named = caught.value.problems
    assert [problem.split(" ")[0] for problem in named] == ["env", "policies['odd']", "mapping"]
    assert "write Policy(PPO(...))" in named[1]
    assert "[Rule('adversary_*', 'hunters'), ...]" in named[2]


def test_a_plain_experiment_is_one() -> None:
    assert Experiment(Env(dict)).policies == {}
