"""The mode `sampled` of each algorithm's policy: its own distribution, without exploration noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.spaces import Spaces
from marlflow.policy.actor import Mode, RecurrentActor
from tests.policy.row_random import row_random

ROWS = 60
VALUE_BASED_OR_DETERMINISTIC = {"dqn", "apex", "r2d2", "vdn", "qmix", "ddpg", "td3"}
# Discrete actions of these are drawn from a softmax.
DETERMINISTIC_IN_A_BOX = {"maddpg", "matd3"}
EXPLORING = {"epsilon": 1.0, "exploration_noise": 1.0, "acts_uniformly": 1.0}
NOT_EXPLORING = dict.fromkeys(EXPLORING, 0.0)
ACTIONS = {"Discrete": gym.Discrete(4), "Box": gym.Box(-1.0, 1.0, (2,), np.float32)}
CASES = [(one, name) for one in SHIPPED for name in one.capabilities.actions if name in ACTIONS]


def acted(actor: Any, mode: Mode, schedule: dict[str, float]) -> Any:
    obs = np.random.default_rng(1).standard_normal((ROWS, 3)).astype(np.float32)
    memory = np.zeros((ROWS, *actor.memory_shape), np.float32) if isinstance(actor, RecurrentActor) else None
    actor.set_schedule(schedule)
    return actor.act(obs, None, memory, mode, row_random(ROWS)).action


@pytest.mark.parametrize(("algorithm", "action"), CASES, ids=[f"{one.name}-{name}" for one, name in CASES])
def test_sampled_is_the_learned_distribution_alone(algorithm: mf.Algorithm, action: str) -> None:
    spaces = Spaces(gym.Box(-9.0, 9.0, (3,), np.float32), ACTIONS[action])
    model = mf.GRU(4, (4,)) if algorithm.capabilities.memory == "needed" else mf.MLP((4,))
    actor = algorithm.actor(spaces, model, 5)
    sampled = acted(actor, "sampled", EXPLORING)
    np.testing.assert_array_equal(sampled, acted(actor, "sampled", NOT_EXPLORING))
    greedy, explored = acted(actor, "greedy", NOT_EXPLORING), acted(actor, "explore", NOT_EXPLORING)
    np.testing.assert_array_equal(sampled, explored)
    without = VALUE_BASED_OR_DETERMINISTIC | (DETERMINISTIC_IN_A_BOX if action == "Box" else set())
    assert (sampled == greedy).all() == (algorithm.name in without)


def test_as_learned_is_greedy_for_algorithms_without_a_distribution_and_sampled_for_all_others() -> None:
    greedy = {one.name for one in SHIPPED if one.capabilities.as_learned == "greedy"}
    assert greedy == VALUE_BASED_OR_DETERMINISTIC
