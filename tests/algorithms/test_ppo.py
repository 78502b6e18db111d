"""PPO: its plan, refusals, and its loss as learners use it, compared with plain loops over rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.arrays import Array
from tests.algorithms.parts import (
    DISCRETE,
    MASKED,
    NUM_ACTIONS,
    forward,
    gradient_by_differences,
    loss_and_gradient,
    make_learner,
    make_plan,
    minibatch,
    spread_out,
)


def test_settings_reach_the_stages() -> None:
    text = str(make_plan(mf.PPO(discount=0.5, gae_lambda=0.25, max_staleness=3)))
    assert "Advantages(discount=0.5, gae_lambda=0.25" in text
    assert "DropStale(max_staleness=3)" in text


def test_it_schedules_nothing_and_remembers_nothing() -> None:
    assert mf.PPO().schedules(0) == mf.PPO().schedules(10**9) == {}
    assert isinstance(mf.PPO(), mf.Algorithm)
    with pytest.raises(TypeError, match="ppo has no replay"):
        mf.PPO().replay("hunter", {}, seed=0)


# -- the loss -------------------------------------------------------------------------------------------------------


def naive_terms(config: mf.PPO, module: Any, columns: dict[str, Array]) -> dict[str, float]:
    """Equation 9, row by row: the terms that are reported, and their sum as `total`."""
    logits = forward(module, "actor.torso", "actor.head", columns["obs"])
    values = forward(module, "critic_torso", "critic_head", columns["obs"])[:, 0]
    rows = len(values)
    sums = {"policy": 0.0, "value": 0.0, "entropy": 0.0, "kl": 0.0}
    for row in range(rows):
        legal = [a for a in range(NUM_ACTIONS) if "action_mask" not in columns or columns["action_mask"][row, a]]
        weights = {a: math.exp(logits[row, a]) for a in legal}
        probability = {a: weight / sum(weights.values()) for a, weight in weights.items()}
        logp, behavior = math.log(probability[int(columns["action"][row])]), float(columns["behavior_logp"][row])
        ratio, advantage = math.exp(logp - behavior), float(columns["advantage"][row])
        clipped = min(max(ratio, 1.0 - config.clip_range), 1.0 + config.clip_range)
        sums["policy"] -= min(ratio * advantage, clipped * advantage)
        sums["entropy"] -= sum(p * math.log(p) for p in probability.values())
        sums["kl"] += ratio - 1.0 - (logp - behavior)
        target, old = float(columns["value_target"][row]), float(columns["value"][row])
        errors = [(values[row] - target) ** 2]
        if config.value_clip_range is not None:
            moved = min(max(values[row] - old, -config.value_clip_range), config.value_clip_range)
            errors.append((old + moved - target) ** 2)
        sums["value"] += 0.5 * max(errors)
    terms = {name: total / rows for name, total in sums.items()}
    weighed = config.value_coefficient * terms["value"] - config.entropy_coefficient * terms["entropy"]
    return {**terms, "total": terms["policy"] + weighed}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("value_clip_range", [None, 0.3])
def test_loss_and_gradient_are_those_of_plain_loops(masked: bool, value_clip_range: float | None) -> None:
    config = mf.PPO(value_clip_range=value_clip_range, entropy_coefficient=0.1, value_coefficient=0.7)
    learner = make_learner(config, MASKED if masked else DISCRETE)
    spread_out(learner)
    columns = minibatch(masked)
    terms, gradient, _ = loss_and_gradient(learner, columns)
    expected = naive_terms(config, learner.module, columns)
    assert terms == pytest.approx({name: expected[name] for name in terms}, rel=1e-4, abs=1e-5)
    assert {"policy", "value", "entropy", "kl"} <= terms.keys()
    by_differences = gradient_by_differences(learner, lambda: naive_terms(config, learner.module, columns)["total"])
    np.testing.assert_allclose(gradient, by_differences, atol=2e-4, rtol=2e-3)


def test_an_action_that_is_always_illegal_gets_no_gradient() -> None:
    learner = make_learner(mf.PPO(), MASKED)
    spread_out(learner)
    columns = minibatch(masked=True)
    columns["action"] = np.minimum(columns["action"], 1)
    columns["action_mask"][:] = [True, True, False]
    loss_and_gradient(learner, columns)
    head = learner.module.actor.head
    assert not head.weight.grad[2].any()
    assert not head.bias.grad[2].any()
    assert head.bias.grad[:2].all()


def test_a_shared_torso_learns_from_both_losses() -> None:
    config = mf.PPO(shared_torso=True, entropy_coefficient=0.0)
    columns = minibatch(masked=False)
    columns["advantage"][:] = 0.0
    learner = make_learner(config)
    assert learner.module.critic_torso is None
    loss_and_gradient(learner, columns)
    assert learner.module.actor.torso.layers[0].weight.grad.any()
    apart = make_learner(mf.PPO(entropy_coefficient=0.0))
    loss_and_gradient(apart, columns)
    assert not apart.module.actor.torso.layers[0].weight.grad.any()


# -- learning -------------------------------------------------------------------------------------------------------


def bandit(learner: mf.TorchLearner, rewards: Array, masked: bool) -> mf.EstimatedBatch:
    """Rows of one decision each at one observation; `rewards` [A] are what each action earns over their mean."""
    rows = 300
    obs = np.full((rows, 2), 0.3, np.float32)
    legal = np.arange(NUM_ACTIONS) if not masked else np.array([0, 2])
    action = np.resize(legal, rows)
    mask = np.isin(np.arange(NUM_ACTIONS), legal)[None].repeat(rows, 0)
    logp = np.log(probabilities(learner, obs[:1], mask[:1] if masked else None)[0][action])
    columns = {
        "obs": obs,
        "action": action,
        "reward": rewards[action].astype(np.float64),
        "behavior_logp": logp.astype(np.float32),
        "version": np.zeros(rows, np.int64),
        "value": np.zeros(rows, np.float32),
        "advantage": (rewards[action] - rewards[legal].mean()).astype(np.float32),
        "value_target": rewards[action].astype(np.float32),
    }
    if masked:
        columns["action_mask"] = mask
    return mf.EstimatedBatch(columns, {"carried": np.zeros(rows, bool)})


def probabilities(learner: mf.TorchLearner, obs: Array, mask: Array | None) -> Array:
    logits = forward(learner.module, "actor.torso", "actor.head", obs)
    weights = np.exp(logits) * (1.0 if mask is None else mask)
    shares: Array = weights / weights.sum(1, keepdims=True)
    return shares


@pytest.mark.parametrize("masked", [False, True])
def test_better_actions_become_likelier(masked: bool) -> None:
    learner = make_learner(mf.PPO(learning_rate=0.01, entropy_coefficient=0.0), MASKED if masked else DISCRETE)
    batch = bandit(learner, np.array([-1.0, 0.0, 1.0]), masked)
    mask = batch.columns.get("action_mask")
    first = None if mask is None else mask[:1]
    before = probabilities(learner, batch.columns["obs"][:1], first)[0]
    update = learner.update(batch, epochs=3, minibatch_agent_steps=100)
    after = probabilities(learner, batch.columns["obs"][:1], first)[0]
    assert update.updates == 9
    assert update.rows == 900
    assert after[2] > before[2] + 0.05
    assert after[0] < before[0] - 0.05
    value = forward(learner.module, "critic_torso", "critic_head", batch.columns["obs"][:1])[0, 0]
    fresh = forward(make_learner(mf.PPO()).module, "critic_torso", "critic_head", batch.columns["obs"][:1])[0, 0]
    target = batch.columns["value_target"].mean()
    assert abs(value - target) < abs(fresh - target)


def test_the_ratio_is_held_near_its_range() -> None:
    # Plain descent would stop at the edge of the range; Adam's momentum carries it a little further.
    config = mf.PPO(learning_rate=0.003, entropy_coefficient=0.0, clip_range=0.1)
    clipped, free = make_learner(config), make_learner(replace(config, clip_range=1e9))
    rewards = np.array([-1.0, 0.0, 1.0])
    moved = []
    for learner in (clipped, free):
        batch = bandit(learner, rewards, masked=False)
        obs = batch.columns["obs"][:1]
        before = probabilities(learner, obs, None)[0, 2]
        learner.update(batch, epochs=300)
        moved.append(probabilities(learner, obs, None)[0, 2] / before)
    assert moved[0] < 1.5
    assert moved[1] > 2.0
