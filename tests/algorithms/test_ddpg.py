"""DDPG: its plan, refusals, losses compared with plain loops over rows, and its two learning rates."""

from __future__ import annotations

import numpy as np
import pytest

import marlflow as mf
from tests.algorithms.parts import CONTINUOUS, forward, make_learner
from tests.algorithms.several_losses import BOX, ROWS, apart, found, naive_q, transitions, within


def test_losses_are_those_of_plain_loops() -> None:
    learner, drawn = apart(make_learner(mf.DDPG(), BOX)), transitions(BOX)
    module, target_module = learner.module, learner.parameters.target_module
    next_action = np.tanh(forward(target_module, "actor.torso", "actor.head", drawn.next_obs))
    q_next = naive_q(target_module, drawn.next_obs, next_action, critics=1)[0, :, 0]
    q = naive_q(module, drawn.obs, within(drawn.action), critics=1)[0, :, 0]
    now = np.tanh(forward(module, "actor.torso", "actor.head", drawn.obs))
    critics = 0.0
    for row in range(ROWS):
        error = q[row] - (float(drawn.reward[row]) + float(drawn.discount[row]) * q_next[row])
        critics += 0.5 * float(drawn.weight[row]) * error**2 / ROWS
    expected = {"critics": critics, "actor": -naive_q(module, drawn.obs, now, critics=1).mean(), "q_mean": q.mean()}
    assert found(learner, drawn, np.zeros((ROWS, 0), np.float32)) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_actor_and_critic_have_learning_rates_of_their_own() -> None:
    config = mf.DDPG(learning_rate=0.02, actor_learning_rate=mf.PiecewiseConstant([0.001, 0.0], [10]))
    learner = make_learner(config, CONTINUOUS)
    assert [part.optimizer.learning_rate for part in learner.parameters.groups] == [0.02, 0.001]
    learner.set_schedule({"learning_rate": 0.5})
    assert [part.optimizer.learning_rate for part in learner.parameters.groups] == [0.5, 0.001]
    learner.set_schedule(config.schedules(10))
    assert [part.optimizer.learning_rate for part in learner.parameters.groups] == [0.5, 0.0]
    before = learner.module.actor.flat()
    learner.update(transitions(CONTINUOUS))
    np.testing.assert_array_equal(learner.module.actor.flat(), before)
