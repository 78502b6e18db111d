"""A2C: its plan, its loss against plain loops, and gradients of several batches as one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.learner.update_job import mean_gradients
from tests.algorithms.parts import (
    DISCRETE,
    MASKED,
    NUM_ACTIONS,
    forward,
    gradient_by_differences,
    loss_and_gradient,
    make_learner,
    minibatch,
    spread_out,
)


def naive_terms(config: mf.A2C, module: Any, columns: dict[str, Array]) -> dict[str, float]:
    """The loss row by row: the terms that are reported, and their sum as `total`."""
    logits = forward(module, "actor.torso", "actor.head", columns["obs"])
    values = forward(module, "critic_torso", "critic_head", columns["obs"])[:, 0]
    rows = len(values)
    sums = {"policy": 0.0, "value": 0.0, "entropy": 0.0}
    for row in range(rows):
        legal = [a for a in range(NUM_ACTIONS) if "action_mask" not in columns or columns["action_mask"][row, a]]
        weights = {a: math.exp(logits[row, a]) for a in legal}
        probability = {a: weight / sum(weights.values()) for a, weight in weights.items()}
        sums["policy"] -= math.log(probability[int(columns["action"][row])]) * float(columns["advantage"][row])
        sums["entropy"] -= sum(p * math.log(p) for p in probability.values())
        sums["value"] += 0.5 * (values[row] - float(columns["value_target"][row])) ** 2
    terms = {name: total / rows for name, total in sums.items()}
    value_coefficient, entropy_coefficient = config.value_coefficient, config.entropy_coefficient
    assert isinstance(value_coefficient, float)
    assert isinstance(entropy_coefficient, float)
    weighed = value_coefficient * terms["value"] - entropy_coefficient * terms["entropy"]
    return {**terms, "total": terms["policy"] + weighed}


@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradient_are_those_of_plain_loops(masked: bool) -> None:
    config = mf.A2C(entropy_coefficient=0.1, value_coefficient=0.7)
    learner = make_learner(config, MASKED if masked else DISCRETE)
    spread_out(learner)
    columns = minibatch(masked)
    terms, gradient, _ = loss_and_gradient(learner, columns)
    expected = naive_terms(config, learner.module, columns)
    assert terms == pytest.approx({name: expected[name] for name in ("policy", "value", "entropy")}, rel=1e-4, abs=1e-5)
    by_differences = gradient_by_differences(learner, lambda: naive_terms(config, learner.module, columns)["total"])
    np.testing.assert_allclose(gradient, by_differences, atol=2e-4, rtol=2e-3)


def test_scheduled_coefficients_reach_the_loss() -> None:
    assert mf.A2C(entropy_coefficient=mf.Linear(0.1, 0.0, agent_steps=100)).schedules(50) == {
        "entropy_coefficient": 0.05
    }
    learner = make_learner(mf.A2C(entropy_coefficient=mf.Linear(0.1, 0.0, agent_steps=100)))
    spread_out(learner)
    columns = minibatch(masked=False)
    _, before, _ = loss_and_gradient(learner, columns)
    learner.set_schedule({"entropy_coefficient": 0.05, "value_coefficient": 0.3})
    _, after, _ = loss_and_gradient(learner, columns)
    direct = make_learner(mf.A2C(entropy_coefficient=0.05, value_coefficient=0.3))
    spread_out(direct)
    _, expected, _ = loss_and_gradient(direct, columns)
    assert np.abs(before - after).max() > 1e-4
    np.testing.assert_array_equal(after, expected)


# -- gradients apart ------------------------------------------------------------------------------------------------


def batch_of(rows: int, seed: int) -> mf.EstimatedBatch:
    columns = {**minibatch(masked=False, rows=rows, seed=seed), "version": np.zeros(rows, np.int64)}
    columns["reward"] = np.zeros(rows)
    return mf.EstimatedBatch(columns, {"carried": np.zeros(1, bool)})


def together(*batches: mf.EstimatedBatch) -> mf.EstimatedBatch:
    columns = {name: np.concatenate([batch.columns[name] for batch in batches]) for name in batches[0].columns}
    return mf.EstimatedBatch(columns, {"carried": np.zeros(len(batches), bool)})


def learner_of(config: mf.A2C) -> mf.TorchLearner:
    learner = make_learner(config)
    spread_out(learner)
    return learner


def test_the_mean_gradient_of_microbatches_is_that_of_all_rows_at_once() -> None:
    config = mf.A2C(optimizer=mf.TorchOptimizer(torch.optim.SGD), learning_rate=0.1)
    apart, at_once = learner_of(config), learner_of(config)
    batches = [batch_of(rows, seed) for seed, rows in enumerate((7, 20, 3))]
    found = apart.apply(mean_gradients([apart.gradients(batch) for batch in batches]))
    expected = at_once.update(together(*batches))
    np.testing.assert_allclose(apart.parameters.flat.vector.numpy(), at_once.parameters.flat.vector.numpy(), atol=1e-6)
    assert (found.rows, found.updates, found.version) == (expected.rows, expected.updates, expected.version)
    assert found.loss == pytest.approx(dict(expected.loss), rel=1e-4)


def test_better_actions_become_likelier() -> None:
    config = replace(mf.A2C(), learning_rate=0.02, entropy_coefficient=0.0)
    learner = make_learner(config)
    rewards, rows = np.array([-1.0, 0.0, 1.0]), 300
    batch = batch_of(rows, 0)
    action = np.resize(np.arange(NUM_ACTIONS), rows)
    columns = {**batch.columns, "obs": np.full((rows, 2), 0.3, np.float32), "action": action}
    columns |= {"advantage": rewards[action].astype(np.float32), "value_target": np.full(rows, 2.0, np.float32)}
    before = forward(learner.module, "actor.torso", "actor.head", columns["obs"][:1])[0]
    for _ in range(10):
        assert learner.update(mf.EstimatedBatch(columns, batch.segments)).updates == 1
    after = forward(learner.module, "actor.torso", "actor.head", columns["obs"][:1])[0]
    assert after[2] - before[2] > 0.05 > -0.05 > after[0] - before[0]
    assert forward(learner.module, "critic_torso", "critic_head", columns["obs"][:1])[0, 0] > 0.1
