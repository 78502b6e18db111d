"""Rewards near a reference policy, by loops over rows; the reference stays what the policy began with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from marlflow.policy.normalized import observers
from tests.algorithms.parts import DISCRETE, SMALL, forward, make_learner, make_plan, spread_out

NEAR = mf.PPO(parts={"near": mf.KLToReference(0.5)}, epochs=2, minibatch_agent_steps=4)
LENGTHS = [3, 1, 4]


def batch_of(learner: mf.TorchLearner, masked: bool = False) -> mf.Batch:
    """Rows of three segments, with what the present actor thought of its actions."""
    generator = np.random.default_rng(1)
    rows = sum(LENGTHS)
    columns = {
        "obs": generator.uniform(-1.0, 1.0, (rows, 2)).astype(np.float32),
        "action": generator.integers(0, 3, rows),
        "reward": generator.standard_normal(rows),
        "version": np.zeros(rows, np.int64),
    }
    if masked:
        columns["action_mask"] = np.arange(3) != (columns["action"][:, None] + 1) % 3
    columns["behavior_logp"] = logps(learner.module, "torso", columns).astype(np.float32)
    ends = np.array([True, False, False])
    segments = {
        "length": np.array(LENGTHS),
        "terminated": ends,
        "truncated": ~ends,
        "bootstrap_obs": np.zeros((3, 2), np.float32),
        "carried": np.zeros(3, bool),
    }
    return mf.Batch(columns, segments)


def logps(actor_critic: Any, torso: str, columns: dict[str, Array]) -> Array:
    """The log-probabilities of the actions, by plain loops in float64."""
    actor = actor_critic.actor if hasattr(actor_critic, "actor") else actor_critic
    logits = forward(actor, torso, "head", columns["obs"])
    legal = columns.get("action_mask", np.ones(logits.shape, bool))
    found = []
    for row, action in enumerate(columns["action"]):
        weights = [np.exp(logits[row, at]) if legal[row, at] else 0.0 for at in range(3)]
        found.append(np.log(weights[action] / sum(weights)))
    return np.array(found)


def moved(algorithm: mf.PPO = NEAR, spaces: Spaces = DISCRETE) -> mf.TorchLearner:
    """A learner whose parameters have left its reference."""
    learner = make_learner(algorithm, spaces)
    spread_out(learner)
    return learner


@pytest.mark.parametrize("masked", [False, True])
def test_each_reward_is_lowered_by_beta_times_the_difference_of_log_probabilities(masked: bool) -> None:
    learner = moved(spaces=replace(DISCRETE, masked=masked))
    batch = batch_of(learner, masked)
    found = mf.KLToReference(0.5)(batch, learner)
    expected = batch.columns["behavior_logp"] - logps(learner.part_state("reference").actor, "torso", batch.columns)
    assert np.abs(expected).min() > 1e-3
    np.testing.assert_allclose(found.columns["kl_to_reference"], expected, atol=1e-5)
    np.testing.assert_allclose(found.columns["reward"], batch.columns["reward"] - 0.5 * expected, atol=1e-5)
    assert found.columns["reward"].dtype == np.float64
    assert found.columns["kl_to_reference"].dtype == np.float32
    for name in batch.columns.keys() - {"reward"}:
        assert found.columns[name] is batch.columns[name]
    assert found.segments is batch.segments


def test_the_mean_over_actions_by_their_probabilities_is_the_divergence() -> None:
    learner, obs = moved(), np.array([[0.3, -0.8]], np.float32)
    every = {"obs": np.repeat(obs, 3, 0), "action": np.arange(3)}
    now, then = logps(learner.module, "torso", every), logps(learner.part_state("reference").actor, "torso", every)
    batch = batch_of(learner).only(np.array([True, False, False]))
    batch = batch.with_columns(**every, behavior_logp=now.astype(np.float32))
    kl = mf.KLToReference(1.0)(batch, learner).columns["kl_to_reference"]
    assert sum(np.exp(now) * kl) == pytest.approx(sum(np.exp(now) * (now - then)), abs=1e-6)
    assert sum(np.exp(now) * kl) > 0.01


def test_a_policy_that_is_its_reference_loses_nothing_and_zero_rows_are_rows() -> None:
    learner = make_learner(NEAR)
    batch = batch_of(learner)
    found = mf.KLToReference(1e6)(batch, learner)
    np.testing.assert_allclose(found.columns["kl_to_reference"], 0.0, atol=1e-6)
    nothing = mf.KLToReference(0.5)(batch.only(np.zeros(3, bool)), learner)
    assert nothing.rows == 0
    assert nothing.columns["kl_to_reference"].shape == (0,)


def test_a_schedule_takes_precedence() -> None:
    learner = moved(replace(NEAR, parts={"near": mf.KLToReference(mf.Linear(0.5, 0.0, 100))}))
    batch = batch_of(learner)
    learner.set_schedule({"KLToReference.beta": 0.25})
    found = mf.KLToReference(0.5)(batch, learner).columns
    np.testing.assert_allclose(batch.columns["reward"] - found["reward"], 0.25 * found["kl_to_reference"], atol=1e-6)


def test_the_reference_stays_and_is_kept_bit_for_bit() -> None:
    learner, other = moved(), make_learner(NEAR, seed=5)
    first = learner.state()["part.reference"].copy()
    before = learner.part_state("reference").actor.flat()
    batch = mf.KLToReference(0.5)(batch_of(learner), learner)
    learner.update(mf.Advantages(0.99, 0.95)(batch, learner), 2, 4)
    learner.publish()
    np.testing.assert_array_equal(learner.part_state("reference").actor.flat(), before)
    np.testing.assert_array_equal(learner.state()["part.reference"], first)
    assert not np.array_equal(learner.published["hunter"].flat, before)
    assert not any(parameter.requires_grad for parameter in learner.part_state("reference").actor.parameters())
    other.load_state(learner.state())
    np.testing.assert_array_equal(other.part_state("reference").actor.flat(), before)
    np.testing.assert_array_equal(
        mf.KLToReference(0.5)(batch, other)["reward"], mf.KLToReference(0.5)(batch, learner)["reward"]
    )


def test_a_warm_start_is_the_reference_and_a_reset_goes_back_to_it() -> None:
    learner, source = make_learner(NEAR), moved(replace(NEAR, parts={"near": None}))
    flat = source.publish()["hunter"].flat
    learner.parameters.load_actor("hunter", flat)
    np.testing.assert_array_equal(learner.part_state("reference").actor.flat(), flat)
    named = {"actor.head.bias": np.array([1.0, 2.0, 3.0], np.float32)}
    learner.parameters.load_named("hunter", named)
    np.testing.assert_array_equal(learner.part_state("reference").actor.head.bias, [1.0, 2.0, 3.0])
    start = make_learner(NEAR, seed=8)
    learner.reset(start)
    np.testing.assert_array_equal(learner.part_state("reference").actor.flat(), start.module.actor.flat())


def test_running_moments_of_observations_stay_too() -> None:
    model = mf.MLP((4,), normalize_observations=True)
    learner = NEAR.learner("hunter", {"hunter": mf.Member(DISCRETE, model)}, 0, ON_CPU)
    before = learner.part_state("reference").actor.flat()
    batch = mf.KLToReference(0.5)(batch_of_moments(learner), learner)
    learner.update(mf.Advantages(0.99, 0.95)(batch, learner))
    np.testing.assert_array_equal(learner.part_state("reference").actor.flat(), before)
    (present,), (initial,) = observers(learner.module.actor), observers(learner.part_state("reference").actor)
    assert (int(present.moments.count), int(initial.moments.count)) == (batch.rows, 0)


def batch_of_moments(learner: mf.TorchLearner) -> mf.Batch:
    batch = batch_of(make_learner(NEAR))
    return batch.with_columns(behavior_logp=np.full(batch.rows, -np.log(3.0), np.float32))


def test_without_it_there_is_no_reference_and_a_checkpoint_with_one_is_another() -> None:
    plain = make_learner(replace(NEAR, parts={"near": None}))
    assert "reference" not in plain.state()
    with pytest.raises(TypeError, match="'hunter' was made without a reference"):
        mf.KLToReference(0.5)(batch_of(plain), plain)
    with pytest.raises(mf.CheckpointUnusable, match=r"reference: expected float32 .*, got nothing"):
        make_learner(NEAR).load_state(plain.state())


def test_it_stands_in_the_plan_in_front_of_the_advantages_and_stays_at_its_learner() -> None:
    assert "DropStale(max_staleness=0) → KLToReference(beta=0.5) → Advantages(" in str(make_plan(NEAR))
    assert "KLToReference(beta=0)" in str(make_plan(replace(NEAR, parts={"near": mf.KLToReference(0)})))
    assert str(make_plan(mf.PPO())) == str(make_plan(mf.PPO(parts={"near": None})))
    assert "KLToReference" not in str(make_plan(mf.PPO()))
    assert mf.KLToReference.traits.movable is None


def test_the_loss_reports_the_mean_and_is_else_the_same() -> None:
    learner = moved()
    estimated = mf.Advantages(0.99, 0.95)(mf.KLToReference(0.5)(batch_of(learner), learner), learner)
    columns = {name: column for name, column in estimated.columns.items() if name != "kl_to_reference"}
    with_kl, without = learner.gradients(estimated), moved(mf.PPO()).gradients(replace(estimated, columns=columns))
    np.testing.assert_array_equal(with_kl.flat, without.flat)
    mean = estimated.columns["kl_to_reference"].mean()
    assert with_kl.loss == {**without.loss, "kl_to_reference": pytest.approx(mean, abs=1e-6)}
    continuous = Spaces(DISCRETE.observation, gym.Box(-1.0, 1.0, (2,), np.float32))
    by_autograd = NEAR.learner("hunter", {"hunter": mf.Member(continuous, SMALL)}, 0, ON_CPU)
    rows = estimated.with_columns(action=np.zeros((estimated.rows, 2), np.float32))
    assert by_autograd.gradients(rows).loss["kl_to_reference"] == pytest.approx(mean, abs=1e-6)
