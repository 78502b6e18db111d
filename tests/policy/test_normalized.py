"""Running moments that belong to a policy: against numpy over all rows, published, kept, and changing no value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from marlflow.policy.actor import WeightedActor
from marlflow.policy.normalized import RunningMoments
from tests.policy.row_random import row_random
from tests.sentences import sentences

SEEN = Spaces(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3))
MODEL = mf.MLP((8,), normalize_observations=True)
SCALED = {"values": mf.PopArt()}


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 1000))
def test_moments_are_those_of_all_rows(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = [random.normal(1e3, 5.0, (size, 3)).astype(np.float32) for size in sizes]
    moments = RunningMoments(3)
    for part in parts:
        moments.add(torch.from_numpy(part))
    rows = np.concatenate(parts) if sum(sizes) else np.zeros((0, 3))
    assert float(moments.count) == len(rows)
    expected = (rows.mean(0), rows.var(0)) if len(rows) else (np.zeros(3), np.ones(3))
    np.testing.assert_allclose(moments.mean.numpy(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(moments.variance.numpy(), expected[1], rtol=1e-3, atol=1e-3)


def estimated(rows: int, scale: float = 100.0, seed: int = 0) -> mf.EstimatedBatch:
    random = np.random.default_rng(seed)
    floats = {name: random.normal(size=rows).astype(np.float32) for name in ("behavior_logp", "advantage", "value")}
    columns: dict[str, Array] = {
        **floats,
        "value_target": (scale * random.normal(size=rows) + 50.0).astype(np.float32),
        "obs": (random.normal(size=(rows, 2)) * [1.0, 300.0] + [0.0, 1e3]).astype(np.float32),
        "action": random.integers(0, 3, rows),
        "reward": np.zeros(rows),
        "version": np.zeros(rows, np.int64),
    }
    return mf.EstimatedBatch(columns, {"length": np.full(1, rows), "carried": np.zeros(1, bool)})


def learner(model: mf.MLP = MODEL, **settings: Any) -> mf.TorchLearner:
    return mf.PPO(**settings).learner("p", {"p": mf.Member(SEEN, model)}, 0, ON_CPU)


@pytest.mark.parametrize("shared_torso", [False, True])
def test_an_actor_acts_by_what_its_learner_has_seen(shared_torso: bool) -> None:
    one, batch = learner(shared_torso=shared_torso), estimated(64)
    actor = mf.PPO().actor(SEEN, MODEL, seed=7)
    assert isinstance(actor, WeightedActor)
    one.update(batch)
    actor.load_flat(one.publish()[one.name].flat)
    moments = actor.torso.rows.moments  # type: ignore[attr-defined]
    np.testing.assert_allclose(moments.mean.detach().numpy(), batch.columns["obs"].mean(0), rtol=1e-5)
    np.testing.assert_array_equal(actor.flat(), one.published[one.name].flat)
    obs = batch.columns["obs"]
    outputs, _ = one.module(torch.from_numpy(obs))
    expected, _ = one.module.actor.log_prob_and_entropy(outputs, torch.from_numpy(batch.columns["action"]), None)
    chosen = actor.act(obs, None, None, "explore", row_random(64))
    again, _ = one.module.actor.log_prob_and_entropy(outputs, torch.from_numpy(chosen.action), None)
    np.testing.assert_allclose(chosen.behavior_logp, again.detach().numpy(), atol=1e-5)
    assert expected.isfinite().all()


def test_a_batch_is_learned_from_before_it_is_counted() -> None:
    """So the first update of PPO sees ratios of 1, whatever the batch does to the moments."""
    one, batch = learner(learning_rate=0.0), estimated(32)
    with torch.no_grad():
        outputs, _ = one.module(torch.from_numpy(batch.columns["obs"]))
        logp, _ = one.module.actor.log_prob_and_entropy(outputs, torch.from_numpy(batch.columns["action"]), None)
    fresh = mf.EstimatedBatch({**batch.columns, "behavior_logp": logp.numpy()}, batch.segments)
    assert one.update(fresh).loss["kl"] == pytest.approx(0.0, abs=1e-6)
    assert one.update(fresh).loss["kl"] > 1e-6  # now they are others


def test_what_was_seen_is_kept_and_reaches_the_target() -> None:
    random = np.random.default_rng(0)
    obs, next_obs = random.normal(7.0, 2.0, (2, 32, 2)).astype(np.float32)
    ones = np.ones(32, np.float32)
    rows = mf.Transitions(obs, random.integers(0, 3, 32), ones, ones, next_obs, ones, np.arange(32))
    one = mf.DQN().learner("d", {"d": mf.Member(SEEN, MODEL)}, 0, ON_CPU)
    one.update(rows)
    mean: Tensor = one.module.actor.torso.rows.moments.mean
    np.testing.assert_allclose(mean.detach().numpy(), obs.mean(0), rtol=1e-5)
    assert float(one.parameters.target_module.actor.torso.rows.moments.count) == 0.0
    one.sync_target()
    assert float(one.parameters.target_module.actor.torso.rows.moments.count) == 32.0
    other = mf.DQN().learner("d", {"d": mf.Member(SEEN, MODEL)}, 1, ON_CPU)
    other.load_state(one.state())
    np.testing.assert_array_equal(other.module.actor.flat(), one.module.actor.flat())
    assert other.update(rows).loss == one.update(rows).loss


@pytest.mark.parametrize("shared_torso", [False, True])
def test_units_of_returns_change_and_values_do_not(shared_torso: bool) -> None:
    one = learner(mf.MLP((8,)), shared_torso=shared_torso, parts=SCALED, learning_rate=0.0)
    batch = estimated(128)
    obs = batch.columns["obs"] / 300.0
    before = one.values(obs)
    loss = one.update(batch).loss["value"]
    np.testing.assert_allclose(one.values(obs), before, rtol=1e-4, atol=1e-3)
    targets = batch.columns["value_target"]
    moments = one.module.returns.moments
    assert float(moments.mean) == pytest.approx(targets.mean(), rel=1e-4)
    assert float(moments.deviation) == pytest.approx(targets.std(), rel=1e-4)
    assert one.update(batch).loss["value"] == pytest.approx(loss / targets.var(), rel=1e-2)


def test_normalized_returns_are_learned_at_any_scale() -> None:
    """The same targets, a thousand times as large, come out a thousand times as large, but for where they began."""
    found = []
    for scale in (1.0, 1e3):
        one = learner(mf.MLP((16,)), parts=SCALED, learning_rate=3e-3, entropy_coefficient=0.0)
        batch = estimated(64, scale)
        small = batch.columns["obs"] / [1.0, 300.0] - [0.0, 1e3 / 300.0]
        targets = (scale * (2.0 + small[:, 0])).astype(np.float32)
        rows = mf.EstimatedBatch(
            {**batch.columns, "obs": small.astype(np.float32), "value_target": targets}, batch.segments
        )
        one.update(rows)  # from here on the units are known
        for _ in range(300):
            one.update(rows)
        found.append(one.values(small.astype(np.float32)) / scale)
        assert np.abs(found[-1] - targets / scale).mean() < 0.1
    assert np.abs(found[0] - found[1]).mean() < 0.1


@pytest.mark.parametrize("algorithm", [mf.A3C(), mf.DDPPO(), mf.MAML(), mf.A2C(microbatches=2)])
def test_who_does_not_see_all_rows_keeps_no_moments(algorithm: mf.Algorithm) -> None:
    assert sentences(algorithm.validate(SEEN, mf.MLP())) == []
    text = "cannot do normalize_observations: its learner does not see all rows; leave it off, or use ppo"
    assert sentences(algorithm.validate(SEEN, MODEL)) == [f"{algorithm.name} {text}"]
    scaled = replace(algorithm, parts=SCALED)  # type: ignore[type-var]
    told = "cannot have a PopArt: its learner does not see all rows; leave the part out, or use ppo"
    if algorithm.capabilities.critic:
        assert sentences(scaled.validate(SEEN, mf.MLP())) == [f"{algorithm.name} {told}"]


BOX = Spaces(spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1.0, 1.0, (2,)))


@pytest.mark.parametrize("algorithm", [mf.SAC(), mf.TD3(), mf.DDPG()], ids=lambda one: one.name)
def test_critics_of_actions_see_observations_normalized_and_actions_as_they_are(algorithm: mf.Algorithm) -> None:
    """Far observations and their like around 0 are the same to a learner that has seen all of either."""
    random = np.random.default_rng(0)
    near, next_near = random.normal(size=(2, 64, 2)).astype(np.float32)
    action = random.uniform(-1.0, 1.0, (64, 2)).astype(np.float32)
    ones = np.ones(64, np.float32)
    found = []
    for scale, shift in ((1.0, 0.0), (8.0, 50.0)):
        seen, following = ((scale * obs + shift).astype(np.float32) for obs in (near, next_near))
        rows = mf.Transitions(seen, action, ones, 0.9 * ones, following, ones, np.arange(64))
        one = algorithm.learner("s", {"s": mf.Member(BOX, MODEL)}, 0, ON_CPU)
        one.set_schedule({"learning_rate": 0.0, "actor_learning_rate": 0.0})
        one.update(rows)
        one.sync_target()
        with torch.no_grad():
            values = one.module.critics(torch.from_numpy(seen), torch.from_numpy(action))
        found.append(values.numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4)
    assert np.ptp(found[0]) > 0.01


def test_pixels_in_parts_are_not_normalized_and_it_is_said() -> None:
    parts = spaces.Dict(camera=spaces.Box(0, 255, (4, 4, 3), np.uint8), speed=spaces.Box(-1.0, 1.0, (2,)))
    with pytest.raises(mf.ConfigInvalid, match="normalize_observations is for observations of plain numbers"):
        mf.PPO().learner("p", {"p": mf.Member(Spaces(parts, SEEN.action), MODEL)}, 0, ON_CPU)


def test_rows_that_nothing_can_be_learned_from_leave_the_moments_as_they_were() -> None:
    one = learner(parts=SCALED)
    one.update(estimated(64))
    before = one.parameters.flat.vector.clone()
    batch = estimated(64, seed=1)
    endless = {name: batch.columns[name].copy() for name in ("value_target", "obs")}
    for column in endless.values():
        column[3] = np.inf
    with np.errstate(all="ignore"):
        lost = mf.EstimatedBatch({**batch.columns, "value_target": endless["value_target"]}, batch.segments)
        assert one.update(lost).updates_skipped == 1
        assert torch.equal(one.parameters.flat.vector, before)
        # An observation is clipped, however far it is: the step is taken, and what is usual stays so.
        far = mf.EstimatedBatch({**batch.columns, "obs": endless["obs"]}, batch.segments)
        assert one.update(far).updates == 1
    moments = one.module.actor.torso.rows.moments
    assert float(moments.count) == 64.0
    assert moments.mean.isfinite().all()


def test_squares_beyond_all_numbers_are_not_counted() -> None:
    moments = RunningMoments(1)
    moments.add(torch.full((4, 1), 2.0))
    moments.add(torch.tensor([[1e30], [-1e30]]))
    assert (float(moments.mean), float(moments.count)) == (2.0, 4.0)
