"""Weights of another size than an actor's own are refused, not cut and not loaded in part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import Compute
from marlflow.sampling.acting_policy import ActingPolicy

ACTIONS = {"Discrete": gym.Discrete(4), "Box": gym.Box(-1.0, 1.0, (2,), np.float32)}
CASES = [(one, name) for one in SHIPPED for name in one.capabilities.actions if name in ACTIONS]


def spaces_of(action: str) -> Spaces:
    return Spaces(gym.Box(-9.0, 9.0, (3,), np.float32), ACTIONS[action])


@pytest.mark.parametrize(("algorithm", "action"), CASES, ids=[f"{one.name}-{name}" for one, name in CASES])
def test_an_actor_takes_exactly_as_many_parameters_as_it_has(algorithm: mf.Algorithm, action: str) -> None:
    model = mf.GRU(4, (4,)) if algorithm.capabilities.memory == "needed" else mf.MLP((4,))
    actor: Any = algorithm.actor(spaces_of(action), model, 5)
    before = actor.flat()
    for wrong in (before[:-1] + 1, np.append(before, 1.0).astype(np.float32), before[None] + 1):
        with pytest.raises(mf.WeightsMismatch, match=rf"expected a flat vector of {len(before)} parameters"):
            actor.load_flat(wrong)
    np.testing.assert_array_equal(actor.flat(), before)
    actor.load_flat(before + 1)
    np.testing.assert_array_equal(actor.flat(), before + 1)


@pytest.fixture
def published() -> tuple[ActingPolicy, Any]:
    """A worker's player of PPO, and weights of a learner that publishes its critic too."""
    spaces, model = spaces_of("Discrete"), mf.MLP((4,))
    learner = mf.PPO().learner("p", {"p": mf.Member(spaces, model)}, 1, Compute())
    learner.publish_all()
    return ActingPolicy("p", mf.PPO().actor(spaces, model, 2), spaces, 1, False), learner.publish()["p"]


def test_a_critic_after_the_acting_parameters_is_left_out_where_it_is_expected(
    published: tuple[ActingPolicy, Any],
) -> None:
    player, weights = published
    actor: Any = player.actor
    with pytest.raises(mf.WeightsMismatch):
        player.load(weights, with_critic=False)
    player.load(weights, with_critic=True)
    np.testing.assert_array_equal(actor.flat(), weights.flat[: len(actor.flat())])
    assert player.version == weights.version
    with pytest.raises(mf.WeightsMismatch):
        player.load(replace(weights, flat=actor.flat()[:-1]), with_critic=True)


@pytest.mark.parametrize("size", [1, -1])
def test_a_learner_takes_exactly_as_many_parameters_as_it_has(size: int) -> None:
    """A vector of one number would spread over all of them."""
    flat = mf.PPO().learner("p", {"p": mf.Member(spaces_of("Box"), mf.MLP((4,)))}, 1, Compute()).parameters.flat
    with pytest.raises(mf.WeightsMismatch, match=rf"expected a flat vector of {len(flat.vector)} parameters"):
        flat.load(torch.zeros(len(flat.vector))[:size])
