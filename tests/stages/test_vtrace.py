"""V-trace over whole batches: segments that end in every way, on rows of any age."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.advantages import actor_log_probs, advantages, corrected
from tests.algorithms.parts import CONTINUOUS, DISCRETE, MASKED, NUM_ACTIONS, SMALL, make_learner
from tests.learner.experience import ragged
from tests.policy.row_random import row_random


class Critic:
    """Values are the sum of the observation."""

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        return obs.sum(1).astype(np.float32)


@given(
    lengths=st.lists(st.integers(1, 12), max_size=6),
    seed=st.integers(0, 100),
    trace_lambda=st.sampled_from([0.0, 0.5, 1.0]),
    cuts=st.sampled_from([(1.0, 1.0), (2.0, 0.5), (math.inf, math.inf)]),
)
def test_equals_a_loop_over_each_segment(
    lengths: list[int], seed: int, trace_lambda: float, cuts: tuple[float, float]
) -> None:
    batch, discount = ragged(lengths, seed), 0.9
    shift = np.random.default_rng(seed).standard_normal(batch.rows)
    logp = (batch.columns["behavior_logp"] + shift).astype(np.float32)
    found = corrected(batch, logp, Critic(), discount, trace_lambda, *cuts)
    value = batch.columns["obs"].sum(1)
    target, advantage, start = np.zeros(batch.rows), np.zeros(batch.rows), 0
    for segment, length in enumerate(lengths):
        following = 0.0 if batch.segments["terminated"][segment] else batch.segments["bootstrap_obs"][segment].sum()
        excess = 0.0  # of the target over the value, of the row after
        for row in reversed(range(start, start + length)):
            rho, c = (min(cut, math.exp(shift[row])) for cut in cuts)
            reward = batch.columns["reward"][row]
            advantage[row] = rho * (reward + discount * (following + trace_lambda * excess) - value[row])
            excess = rho * (reward + discount * following - value[row]) + discount * trace_lambda * c * excess
            target[row], following = value[row] + excess, value[row]
        start += length
    assert isinstance(found, mf.EstimatedBatch)
    np.testing.assert_allclose(found.columns["advantage"], advantage, atol=1e-3, rtol=1e-4)
    np.testing.assert_allclose(found.columns["value_target"], target, atol=1e-3, rtol=1e-4)
    np.testing.assert_array_equal(found.columns["logp"], logp)
    names = ("value", "advantage", "value_target", "logp")
    assert {found.columns[name].dtype for name in names} == {np.dtype(np.float32)}


@given(st.lists(st.integers(1, 12), max_size=6), st.integers(0, 100), st.sampled_from([0.0, 0.95, 1.0]))
def test_of_fresh_rows_it_is_generalized_advantage_estimation(
    lengths: list[int], seed: int, trace_lambda: float
) -> None:
    batch = ragged(lengths, seed)
    found = corrected(batch, batch.columns["behavior_logp"], Critic(), 0.9, trace_lambda, 1.0, 1.0)
    expected = advantages(batch, Critic(), 0.9, trace_lambda)
    for name in ("value", "advantage", "value_target"):
        np.testing.assert_allclose(found.columns[name], expected.columns[name], atol=1e-4)


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED, CONTINUOUS])
def test_log_probabilities_are_those_that_an_actor_with_the_same_parameters_gives(spaces: Spaces) -> None:
    learner, actor, rows = make_learner(mf.A2C(), spaces), mf.A2C().actor(spaces, SMALL, seed=9), 12
    actor.load_flat(learner.published[learner.name].flat)
    rng = np.random.default_rng(0)
    columns: dict[str, Array] = {"obs": rng.standard_normal((rows, 2)).astype(np.float32)}
    if spaces.masked:
        columns["action_mask"] = rng.random((rows, NUM_ACTIONS)) < 0.5
        columns["action_mask"][:, 1] = True
    random = row_random(rows)
    acted = actor.act(columns["obs"], columns.get("action_mask"), None, "explore", random)
    found = actor_log_probs(
        learner.module.actor,
        mf.Batch({**columns, "action": acted.action, "reward": np.zeros(rows)}, {}),
        learner.device,
    )
    np.testing.assert_allclose(found, acted.behavior_logp, atol=1e-5)
    assert found.dtype == np.float32


def test_scheduled_settings_count_more_than_those_at_the_start() -> None:
    learner = make_learner(mf.A2C())
    batch = ragged([5, 3])
    batch = mf.Batch({**batch.columns, "obs": batch.columns["obs"][:, :2]}, batch.segments)
    batch = mf.Batch(batch.columns, {**batch.segments, "bootstrap_obs": batch.segments["bootstrap_obs"][:, :2]})
    logp = actor_log_probs(learner.module.actor, batch, learner.device)
    at_start, now = (0.9, 1.0, 1.0, 1.0), (0.5, 0.25, 1.2, 0.7)
    for settings in (at_start, now):
        found = mf.VTrace(discount=0.9)(batch, learner)
        expected = corrected(batch, logp, learner, *settings)
        for name in ("advantage", "value_target"):
            np.testing.assert_array_equal(found.columns[name], expected.columns[name])
        learner.set_schedule(dict(zip(("discount", "trace_lambda", "rho_max", "c_max"), now, strict=True)))
