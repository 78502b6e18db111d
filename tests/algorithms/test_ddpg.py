"""DDPG: its plan, what it refuses, its losses against plain loops over rows, and its two learning rates."""

from __future__ import annotations

import numpy as np
import pytest

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.ddpg import DDPG
from marlflow.base.schedules import PiecewiseConstant
from marlflow.policy.actor import WeightedActor
from tests.algorithms.parts import CONTINUOUS, DISCRETE, SMALL, forward, make_learner, make_plan
from tests.algorithms.several_losses import BOX, ROWS, apart, found, naive_q, transitions, within
from tests.sentences import sentences


def test_the_plan_reads_as_its_paper() -> None:
    config = DDPG(train_every_agent_steps=4, learning_starts_agent_steps=50, batch_agent_steps=32)
    assert str(make_plan(config, spaces=CONTINUOUS)) == (
        "ddpg   in turn: output 1 for every 4 agent steps of store, after the first 50\n"
        "├── store:  experience → Concat(agent_steps=1)\n"
        "│   → [NStep(n_step=1, discount=0.99) → Insert] at learner hunter\n"
        "└── output: [Draw(agent_steps=32) → Learn(epochs=1) → SyncTarget(every=1, tau=0.005) → Publish(every=10)]"
        " at learner hunter"
    )


def test_its_actor_takes_what_its_learner_publishes() -> None:
    config = DDPG()
    assert sentences(config.validate(BOX, SMALL)) == []
    assert isinstance(config, Algorithm)
    learner, actor = make_learner(config, BOX, seed=1), config.actor(BOX, SMALL, seed=2)
    assert isinstance(actor, WeightedActor)
    actor.load_flat(learner.published[learner.name].flat)
    np.testing.assert_array_equal(actor.flat(), learner.published[learner.name].flat)


def test_what_it_refuses() -> None:
    assert sentences(DDPG().validate(DISCRETE, SMALL)) == ["ddpg cannot act in Discrete(3); it needs Box actions"]


def test_losses_are_those_of_plain_loops() -> None:
    learner, drawn = apart(make_learner(DDPG(), BOX)), transitions(BOX)
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
    config = DDPG(learning_rate=0.02, actor_learning_rate=PiecewiseConstant([0.001, 0.0], [10]))
    learner = make_learner(config, CONTINUOUS)
    assert [part.optimizer.learning_rate for part in learner.parameters.groups] == [0.02, 0.001]
    learner.set_schedule({"learning_rate": 0.5})
    assert [part.optimizer.learning_rate for part in learner.parameters.groups] == [0.5, 0.001]
    learner.set_schedule(config.schedules(10))
    assert [part.optimizer.learning_rate for part in learner.parameters.groups] == [0.5, 0.0]
    before = learner.module.actor.flat()
    learner.update(transitions(CONTINUOUS))
    np.testing.assert_array_equal(learner.module.actor.flat(), before)
