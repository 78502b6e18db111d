"""DQN with distributions: its loss and priorities as learners use them against plain loops over rows and atoms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.learner.compute import ON_CPU
from marlflow.policy.q import DistributionalQNetwork
from tests.algorithms.parts import DISCRETE, MASKED, NUM_ACTIONS, forward, loss_and_gradient, make_learner
from tests.algorithms.test_dqn import apart, columns_of, transitions

ATOMS = 5
SUPPORT = [-4.0, -2.0, 0.0, 2.0, 4.0]


def config(**changes: Any) -> mf.DQN:
    return mf.DQN(**{"atoms": ATOMS, "value_min": -4.0, "value_max": 4.0, **changes})


def distributions(module: Any, obs: Array) -> Array:
    """Probabilities [N, A, K] by plain loops in float64."""
    logits = forward(module, "actor.torso", "actor.head.advantage", obs).reshape(len(obs), NUM_ACTIONS, ATOMS)
    weights = np.exp(logits)
    found: Array = weights / weights.sum(-1, keepdims=True)
    return found


def expected(probability: Array) -> float:
    return sum(float(p) * z for p, z in zip(probability, SUPPORT, strict=True))


def naive_divergences(learner: mf.TorchLearner, drawn: mf.Transitions, double: bool) -> list[float]:
    """The target of each row, with the network that chooses the next legal action."""
    chosen_by = distributions(learner.module if double else learner.parameters.target_module, drawn.next_obs)
    next_of, now = (
        distributions(learner.parameters.target_module, drawn.next_obs),
        distributions(learner.module, drawn.obs),
    )
    found = []
    for row in range(drawn.rows):
        legal = [a for a in range(NUM_ACTIONS) if drawn.next_mask is None or drawn.next_mask[row, a]]
        best = max(legal, key=lambda a: expected(chosen_by[row, a])) if legal else 0
        target = [0.0] * ATOMS
        for mass, atom in zip(next_of[row, best], SUPPORT, strict=True):
            value = min(max(float(drawn.reward[row]) + float(drawn.discount[row]) * atom, -4.0), 4.0)
            for place, other in enumerate(SUPPORT):
                target[place] += float(mass) * max(0.0, 1.0 - abs(value - other) / 2.0)
        own = now[row, int(drawn.action[row])]
        found.append(sum(t * math.log(t / p) for t, p in zip(target, own, strict=True) if t > 0.0))
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_loss_and_priorities_are_those_of_plain_loops(masked: bool, double: bool) -> None:
    learner = apart(make_learner(config(double=double), MASKED if masked else DISCRETE))
    drawn = transitions(masked)
    terms, _, priorities = loss_and_gradient(learner, columns_of(drawn))
    divergences = naive_divergences(learner, drawn, double)
    assert terms["kl"] == pytest.approx(np.mean(np.array(divergences) * drawn.weight), rel=1e-4)
    np.testing.assert_allclose(priorities, divergences, rtol=1e-3, atol=1e-5)
    now = distributions(learner.module, drawn.obs)
    values = [expected(now[row, action]) for row, action in enumerate(drawn.action)]
    assert terms["q_mean"] == pytest.approx(np.mean(values), rel=1e-4, abs=1e-5)


def test_only_the_action_taken_has_a_gradient_and_the_target_none() -> None:
    learner = apart(make_learner(config()))
    drawn = transitions(masked=False)
    drawn.action[:] = 1
    loss_and_gradient(learner, columns_of(drawn))
    by_action = learner.module.actor.head.advantage.weight.grad.reshape(NUM_ACTIONS, ATOMS, -1)
    assert by_action[1].any()
    assert not by_action[[0, 2]].any()


@pytest.mark.parametrize("dueling", [False, True])
def test_distributions_become_the_rewards_of_a_bandit(dueling: bool) -> None:
    learner = config(learning_rate=0.02, dueling=dueling, n_step=1).learner(
        "hunter", {"hunter": mf.Member(DISCRETE, mf.MLP((16,)))}, 0, ON_CPU
    )
    rng = np.random.default_rng(0)
    for _ in range(300):
        action = rng.integers(0, NUM_ACTIONS, 32)
        drawn = mf.Transitions(
            obs=np.zeros((32, 2), np.float32),
            action=action,
            reward=np.array([-3.0, 0.5, 3.5], np.float32)[action],
            discount=np.zeros(32, np.float32),
            next_obs=np.zeros((32, 2), np.float32),
            weight=np.ones(32, np.float32),
            row_id=np.arange(32),
        )
        learner.update(drawn)
    with torch.no_grad():
        found = learner.module.logits(torch.zeros(1, 2)).softmax(-1)[0]
    # Each reward's mass is on its two neighbors: -3 between -4 and -2, 0.5 between 0 and 2, 3.5 between 2 and 4.
    table = [[0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.75, 0.25, 0.0], [0.0, 0.0, 0.0, 0.25, 0.75]]
    np.testing.assert_allclose(found.numpy(), table, atol=0.05)


def test_its_target_is_a_network_of_distributions() -> None:
    assert isinstance(make_learner(config(dueling=True), seed=1).parameters.target_module, DistributionalQNetwork)
