"""DQN: its plan, refusals, schedule, and its loss as learners use it, compared with plain loops over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.learner.compute import ON_CPU
from tests.algorithms.parts import (
    DISCRETE,
    MASKED,
    NUM_ACTIONS,
    experience,
    forward,
    gradient_by_differences,
    loss_and_gradient,
    make_learner,
    make_plan,
)


def test_with_a_replay_of_its_own_rows_travel_to_the_learner() -> None:
    config = mf.DQN(batch_agent_steps=32, target_every_updates=9, publish_every_updates=3)
    lines = [line.strip("├└─│ →") for line in str(make_plan(config, own_replay=True)).splitlines()]
    row = " → ".join(lines[3:])
    assert row == (
        "output: [Draw(agent_steps=32)] at replay hunter"
        " → [Learn(epochs=1) → SyncTarget(every=9, tau=1.0) → Publish(every=3)] at learner hunter"
        " → [Reprioritize] at replay hunter"
    )
    assert lines[2] == "[NStep(n_step=3, discount=0.99) → Insert] at replay hunter"


def test_it_needs_a_replay() -> None:
    with pytest.raises(TypeError, match="unpack"):
        mf.DQN().plan(mf.source(experience), make_learner(mf.DQN()), None)


def test_epsilon_falls_linearly_and_stays() -> None:
    config = mf.DQN(epsilon=mf.Linear(0.9, 0.1, 80))
    at = [config.schedules(steps)["epsilon"] for steps in (0, 20, 40, 80, 81, 10**9)]
    assert at == pytest.approx([0.9, 0.7, 0.5, 0.1, 0.1, 0.1])
    assert mf.DQN(epsilon=0.1).schedules(1) == {"epsilon": 0.1}


def test_its_replay_has_its_settings() -> None:
    replay = mf.DQN(n_step=2, discount=0.5, replay_agent_steps=30).replay("hunter", {}, seed=0)
    assert (replay.state()["n_step"], replay.state()["discount"]) == (2, 0.5)
    plain, prioritized = (
        config.replay("hunter", {}, seed=0) for config in (mf.DQN(), mf.DQN(prioritized=True, priority_beta=0.7))
    )
    assert plain.state()["sampler"] == {"kind": "uniform"}
    assert prioritized._sampler._beta == 0.7  # type: ignore[attr-defined]


# -- the loss -------------------------------------------------------------------------------------------------------


def transitions(masked: bool, rows: int = 11) -> mf.Transitions:
    rng = np.random.default_rng(7)
    next_mask = rng.random((rows, NUM_ACTIONS)) < 0.5
    next_mask[np.arange(rows), rng.integers(0, NUM_ACTIONS, rows)] = True
    discount = rng.choice([0.0, 0.81, 0.9], rows).astype(np.float32)
    next_mask[discount == 0.0] = False  # nothing follows, so nothing is legal there
    return mf.Transitions(
        obs=rng.standard_normal((rows, 2)).astype(np.float32),
        action=rng.integers(0, NUM_ACTIONS, rows),
        reward=(3.0 * rng.standard_normal(rows)).astype(np.float32),
        discount=discount,
        next_obs=rng.standard_normal((rows, 2)).astype(np.float32),
        weight=rng.uniform(0.2, 1.0, rows).astype(np.float32),
        row_id=np.arange(rows),
        action_mask=np.ones((rows, NUM_ACTIONS), bool) if masked else None,
        next_mask=next_mask if masked else None,
    )


NAMES = ("obs", "action", "reward", "discount", "next_obs", "weight", "action_mask", "next_mask")


def columns_of(drawn: mf.Transitions) -> dict[str, Array]:
    found = {name: getattr(drawn, name) for name in NAMES}
    return {name: column for name, column in found.items() if column is not None}


def naive_errors(config: mf.DQN, targets: list[float], module: Any, drawn: mf.Transitions) -> tuple[float, list[float]]:
    """The weighted Huber loss, and the size of each row's error."""
    q = forward(module, "actor.torso", "actor.head", drawn.obs)
    total, sizes = 0.0, []
    for row in range(drawn.rows):
        size = abs(targets[row] - q[row, int(drawn.action[row])])
        inner = size <= config.huber_delta
        huber = 0.5 * size**2 if inner else config.huber_delta * (size - 0.5 * config.huber_delta)
        total += float(drawn.weight[row]) * huber
        sizes.append(size)
    return total / drawn.rows, sizes


def naive_targets(config: mf.DQN, learner: mf.TorchLearner, drawn: mf.Transitions) -> list[float]:
    """The network that chooses the next legal action, and the action's value, row by row."""
    chooser = learner.module if config.double else learner.parameters.target_module
    chosen_by = forward(chooser, "actor.torso", "actor.head", drawn.next_obs)
    worth = forward(learner.parameters.target_module, "actor.torso", "actor.head", drawn.next_obs)
    targets = []
    for row in range(drawn.rows):
        target = float(drawn.reward[row])
        if drawn.discount[row] > 0.0:
            legal = [a for a in range(NUM_ACTIONS) if drawn.next_mask is None or drawn.next_mask[row, a]]
            best = max(legal, key=lambda a: chosen_by[row, a])
            target += float(drawn.discount[row]) * worth[row, best]
        targets.append(target)
    return targets


def apart(learner: mf.TorchLearner) -> mf.TorchLearner:
    """Parameters that differ from the target's, so that it shows which network is asked."""
    noise = np.random.default_rng(3).standard_normal(len(learner.parameters.flat.vector)).astype(np.float32)
    learner.parameters.flat.vector.add_(torch.from_numpy(noise), alpha=0.7)
    return learner


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("huber_delta", [0.5, 100.0])
def test_loss_gradient_and_priorities_are_those_of_plain_loops(masked: bool, double: bool, huber_delta: float) -> None:
    config = mf.DQN(double=double, huber_delta=huber_delta)
    learner = apart(make_learner(config, MASKED if masked else DISCRETE))
    drawn = transitions(masked)
    terms, gradient, priorities = loss_and_gradient(learner, columns_of(drawn))
    targets = naive_targets(config, learner, drawn)
    loss, sizes = naive_errors(config, targets, learner.module, drawn)
    assert terms["td"] == pytest.approx(loss, rel=1e-4)
    assert terms["td_error_mean"] == pytest.approx(np.mean(sizes), rel=1e-4)
    q = forward(learner.module, "actor.torso", "actor.head", drawn.obs)
    taken = [q[row, action] for row, action in enumerate(drawn.action)]
    assert terms["q_mean"] == pytest.approx(np.mean(taken), rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(priorities, sizes, rtol=1e-4, atol=1e-5)
    # Targets are constants: only the value of the action that was taken has a gradient.
    by_differences = gradient_by_differences(learner, lambda: naive_errors(config, targets, learner.module, drawn)[0])
    np.testing.assert_allclose(gradient, by_differences, atol=5e-4, rtol=5e-3)


@pytest.mark.parametrize("double", [False, True])
def test_no_target_uses_an_illegal_action(double: bool) -> None:
    """However good an action looks to both networks, where it is illegal it changes nothing."""
    config = mf.DQN(double=double)
    drawn = transitions(masked=True)
    assert drawn.next_mask is not None
    drawn.next_mask[:] = [True, True, False]
    drawn.action[:] = np.minimum(drawn.action, 1)
    found = []
    for bonus in (0.0, 1e6):
        learner = apart(make_learner(config, MASKED))
        with torch.no_grad():
            learner.module.actor.head.bias[2] += bonus
            learner.parameters.target_module.actor.head.bias[2] += bonus
        terms, gradient, _ = loss_and_gradient(learner, columns_of(drawn))
        found.append((terms["td"], gradient))
    assert found[0][0] == pytest.approx(found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-6)


def test_actions_that_were_not_taken_get_no_gradient() -> None:
    learner = apart(make_learner(mf.DQN()))
    drawn = transitions(masked=False)
    drawn.action[:] = 1
    loss_and_gradient(learner, columns_of(drawn))
    by_action = learner.module.actor.head.weight.grad
    assert by_action[1].any()
    assert not by_action[[0, 2]].any()


def test_the_target_moves_only_when_it_is_renewed() -> None:
    learner = make_learner(mf.DQN(learning_rate=0.01))
    obs = torch.zeros(1, 2)
    before = learner.parameters.target_module(obs).numpy().copy()
    for _ in range(3):
        learner.update(transitions(masked=False))
    np.testing.assert_array_equal(learner.parameters.target_module(obs).numpy(), before)
    learner.sync_target()
    np.testing.assert_array_equal(learner.parameters.target_module(obs).numpy(), learner.module(obs).detach().numpy())
    assert np.abs(learner.parameters.target_module(obs).numpy() - before).max() > 1e-3


# -- learning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("prioritized", [False, True])
def test_values_become_the_rewards_of_a_bandit(dueling: bool, prioritized: bool) -> None:
    config = mf.DQN(learning_rate=0.01, dueling=dueling, prioritized=prioritized, n_step=1)
    learner = config.learner("hunter", {"hunter": mf.Member(DISCRETE, mf.MLP((16,)))}, 0, ON_CPU)
    rng = np.random.default_rng(0)
    rows, rewards = 64, np.array([-1.0, 0.25, 1.0], np.float32)
    for _ in range(300):
        action = rng.integers(0, NUM_ACTIONS, rows)
        obs = np.full((rows, 2), 0.3, np.float32)
        drawn = mf.Transitions(
            obs, action, rewards[action], np.zeros(rows, np.float32), obs, np.ones(rows, np.float32), np.arange(rows)
        )
        update = learner.update(drawn)
    q = learner.module(torch.full((1, 2), 0.3)).detach().numpy()[0]
    np.testing.assert_allclose(q, rewards, atol=0.05)
    assert update.priorities is not None
    assert update.priorities.max() < 0.1
    np.testing.assert_array_equal(update.row_ids, np.arange(rows))
