"""TD3: its plan, refusals, its losses compared with plain loops over rows, and when its actor learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.flow.protocols import stage_call
from tests.algorithms.parts import CONTINUOUS, forward, make_learner
from tests.algorithms.several_losses import BOX, ROWS, apart, bandit, found, naive_q, transitions, within


def test_its_exploration_is_scheduled() -> None:
    config = mf.TD3(exploration_noise=mf.Linear(0.3, 0.1, 100), learning_starts_agent_steps=50)
    assert config.schedules(0) == {"acts_uniformly": 1.0, "exploration_noise": 0.3}
    assert config.schedules(50) == {"acts_uniformly": 0.0, "exploration_noise": pytest.approx(0.2)}


def naive_action(module: Any, obs: Array) -> Array:
    return np.tanh(forward(module, "actor.torso", "actor.head", obs))


def test_losses_are_those_of_plain_loops() -> None:
    learner, drawn = apart(make_learner(mf.TD3(target_noise=0.7, target_noise_clip=0.4), BOX)), transitions(BOX)
    noise = np.random.default_rng(1).standard_normal((ROWS, 2)).astype(np.float32)
    module, target_module = learner.module, learner.parameters.target_module
    with torch.no_grad():  # so that the target's actions come near the bounds
        target_module.actor.head.weight.mul_(200.0)
    next_action = naive_action(target_module, drawn.next_obs)
    assert np.abs(next_action).max() > 0.6
    for row in range(ROWS):
        for d in range(2):
            moved = next_action[row, d] + max(-0.4, min(0.4, 0.7 * float(noise[row, d])))
            next_action[row, d] = max(-1.0, min(1.0, moved))
    q_next = naive_q(target_module, drawn.next_obs, next_action)[..., 0]
    q = naive_q(module, drawn.obs, within(drawn.action))[..., 0]
    q_now = naive_q(module, drawn.obs, naive_action(module, drawn.obs))[..., 0]
    critics = 0.0
    for row in range(ROWS):
        target = float(drawn.reward[row]) + float(drawn.discount[row]) * min(q_next[0, row], q_next[1, row])
        critics += float(drawn.weight[row]) * sum(0.5 * (q[k, row] - target) ** 2 for k in (0, 1)) / ROWS
    terms = found(learner, drawn, noise)
    expected = {"critics": critics, "actor": -q_now[0].mean(), "q_mean": q.mean()}
    assert terms == pytest.approx(expected, rel=1e-4, abs=1e-5)
    learner.set_schedule({"target_noise": 0.0})
    assert found(learner, drawn, noise)["critics"] != pytest.approx(critics, rel=1e-4)


def test_actor_and_targets_move_at_every_other_update() -> None:
    learner, drawn = make_learner(mf.TD3(learning_rate=0.01), CONTINUOUS), transitions(CONTINUOUS)
    learn, sync = stage_call(mf.Learn(), learner), stage_call(mf.SyncTarget(every=2, tau=0.1), learner)
    for update in range(1, 5):
        before = [learner.module.actor.flat(), learner.parameters.target_module.critics.heads[0].weight.clone()]
        critic = learner.module.critics.heads[0].weight.detach().clone()
        sync(learn(drawn))
        moved = not np.array_equal(learner.module.actor.flat(), before[0])
        assert (
            moved
            == (not torch.equal(learner.parameters.target_module.critics.heads[0].weight, before[1]))
            == (update % 2 == 0)
        )
        assert not torch.equal(learner.module.critics.heads[0].weight, critic)


def test_the_policy_goes_to_the_best_corner_of_a_bandit() -> None:
    def draw(rng: Any) -> tuple[Array, Array]:
        action = rng.uniform(-1.0, 1.0, (64, 2)).astype(np.float32)
        return action, action[:, 1] - action[:, 0]

    learner = bandit(mf.TD3(learning_rate=0.01), CONTINUOUS, draw, updates=100)
    action = learner.module.actor(torch.full((1, 2), 0.3)).detach().numpy()[0]
    assert action[0] < -0.9
    assert action[1] > 0.9
