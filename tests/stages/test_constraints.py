"""The stages of limits on costs, against plain loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.batches.batch import EstimatedBatch
from marlflow.learner.advantages import advantages
from marlflow.stages import CostAdvantages, Normalize, UpdateMultiplier
from tests.learner.experience import ragged


class Critic:
    """Values are a multiple of the sum of the observation."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        return (self.factor * obs.sum(1)).astype(np.float32)


def learner_with(multiplier: float) -> Any:
    return SimpleNamespace(estimator={"cost_critic": Critic(-2.0)}.get, scheduled={"multiplier": multiplier})


def loop(batch: Any, received: str, factor: float, discount: float, gae_lambda: float) -> tuple[Array, Array]:
    value, advantage, start = factor * batch.columns["obs"].sum(1), np.zeros(batch.rows), 0
    for segment, length in enumerate(batch.segments["length"].tolist()):
        bootstrap = factor * batch.segments["bootstrap_obs"][segment].sum()
        following, later = 0.0 if batch.segments["terminated"][segment] else bootstrap, 0.0
        for row in reversed(range(start, start + length)):
            error = batch.columns[received][row] + discount * following - value[row]
            later = error + discount * gae_lambda * later
            advantage[row], following = later, value[row]
        start += length
    return advantage, advantage + value


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 100), st.sampled_from([0.0, 0.5, 3.0]))
def test_costs_have_advantages_of_their_own_and_are_combined_first(lengths, seed, multiplier):
    batch = ragged(lengths, seed)
    batch = batch.with_columns(cost=np.random.default_rng(seed + 1).normal(size=batch.rows))
    estimated = advantages(batch, Critic(1.0), 0.9, 0.8)
    found = CostAdvantages(0.9, 0.8)(estimated, learner_with(multiplier))
    of_reward, target = loop(batch, "reward", 1.0, 0.9, 0.8)
    of_cost, cost_target = loop(batch, "cost", -2.0, 0.9, 0.8)
    combined = (of_reward - multiplier * of_cost) / (1.0 + multiplier)
    np.testing.assert_allclose(found["advantage"], combined, atol=1e-4)
    np.testing.assert_allclose(found["cost_value_target"], cost_target, atol=1e-4)
    # The target of the critic of rewards has nothing of costs.
    np.testing.assert_allclose(found["value_target"], target, atol=1e-4)
    assert {found[name].dtype for name in ("advantage", "cost_value_target")} == {np.dtype(np.float32)}
    if multiplier == 0.0:
        assert found["advantage"].tolist() == estimated["advantage"].tolist()
    normalized = Normalize()(found)["advantage"]
    expected = (combined - combined.mean()) / (combined.std() + 1e-8)
    np.testing.assert_allclose(normalized, expected, atol=1e-2)


def test_schedules_take_precedence() -> None:
    batch = ragged([4, 3])
    batch = batch.with_columns(cost=np.ones(batch.rows))
    estimated, learner = advantages(batch, Critic(1.0), 0.9, 0.8), learner_with(1.0)
    learner.scheduled |= {"discount": 0.5, "gae_lambda": 0.25}
    expected, _ = loop(batch, "cost", -2.0, 0.5, 0.25)
    np.testing.assert_allclose(CostAdvantages(0.9, 0.8)(estimated, learner)["cost_advantage"], expected, atol=1e-4)


def test_a_batch_without_rows_moves_no_multiplier() -> None:
    class Refusing:
        scheduled: dict[str, float] = {}  # noqa: RUF012

        def part_state(self, name: str) -> Any:
            raise AssertionError("there was nothing to learn from")

    learner: Any = Refusing()
    batch = ragged([2])
    empty = EstimatedBatch(
        {name: column[:0] for name, column in batch.columns.items()},
        {name: column[:0] for name, column in batch.segments.items()},
    )
    assert UpdateMultiplier(1.0, 0.1)(empty, learner) is empty
    assert CostAdvantages(0.9, 0.8)(empty, learner) is empty


class Budget(mf.Part):
    """A part of a user's own, with a stage of marlflow's."""

    def stages(self, algorithm: Any) -> Any:
        return {"estimated": [UpdateMultiplier(1.0, 0.125, lambda at: (at.scheduled["Budget.limit"], 0.125))]}


@pytest.mark.parametrize(("part", "kind"), [(mf.CostLimit(1.0, 0.125), "CostLimit"), (Budget(), "Budget")])
def test_the_limit_and_its_rate_may_be_scheduled(part: mf.Part, kind: str) -> None:
    class Recording:
        scheduled = {f"{kind}.limit": 7.0, "multiplier": 0.0}  # noqa: RUF012

        def part_state(self, name: str) -> Any:
            assert name == "multiplier"
            return self

        def step(self, scheduled: Any, limit: float, rate: float) -> float:
            self.asked = limit, rate
            return 0.0

    learner: Any = Recording()
    part.stages(mf.PPO())["estimated"][0](ragged([2]), learner)
    assert learner.asked == (7.0, 0.125)
