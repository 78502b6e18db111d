"""BC and MARWIL: their losses on the networks by plain loops, their plans, and what is kept of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from tests.algorithms.parts import (
    CONTINUOUS,
    DISCRETE,
    MASKED,
    NUM_ACTIONS,
    SMALL,
    forward,
    gradient_by_differences,
    loss_and_gradient,
    make_learner,
)

ROWS = 7
MARWIL_LIKE_BC = mf.MARWIL(beta=0.0, value_coefficient=0.0)


def columns(spaces: Spaces, seed: int = 0) -> dict[str, Array]:
    """A minibatch of ROWS rows, whose actions are allowed."""
    draw = np.random.default_rng(seed)
    made: dict[str, Array] = {
        "obs": draw.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "action": draw.integers(0, NUM_ACTIONS, ROWS),
        "value_target": draw.normal(size=ROWS).astype(np.float32),
    }
    if spaces.masked:
        made["action_mask"] = draw.random((ROWS, NUM_ACTIONS)) < 0.5
        made["action_mask"][np.arange(ROWS), made["action"]] = True
    if spaces is CONTINUOUS:
        made["action"] = draw.uniform(-0.9, 0.9, (ROWS, 2)).astype(np.float32)
    return made


def log_likelihoods(learner: mf.TorchLearner, spaces: Spaces, rows: dict[str, Array]) -> Array:
    """The log-probability of each row's action, by plain loops."""
    outputs, found = forward(learner.module, "actor.torso", "actor.head", rows["obs"]), []
    for number, output in enumerate(outputs):
        action = rows["action"][number]
        if spaces is CONTINUOUS:  # standard deviation 1 before anything is learned, in a box of [-1, 1]
            squares = sum((a - m) ** 2 for a, m in zip(action.astype(np.float64), output, strict=True))
            found.append(-0.5 * squares - len(output) * 0.5 * np.log(2 * np.pi))
        else:
            allowed = [o for o, legal in enumerate(rows.get("action_mask", np.ones((ROWS, 3), bool))[number]) if legal]
            found.append(output[action] - np.log(sum(np.exp(output[other]) for other in allowed)))
    return np.array(found)


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED, CONTINUOUS], ids=["discrete", "masked", "box"])
@pytest.mark.parametrize("algorithm", [mf.BC(), MARWIL_LIKE_BC, mf.Clone()], ids=["bc", "marwil with beta 0", "clone"])
def test_cloning_is_the_mean_negative_log_likelihood(algorithm: mf.Algorithm, spaces: Spaces) -> None:
    learner, rows = make_learner(algorithm, spaces), columns(spaces)

    def expected() -> float:
        return float(-log_likelihoods(learner, spaces, rows).mean())

    terms, gradient, _ = loss_and_gradient(learner, rows)
    assert terms["policy"] == pytest.approx(expected(), rel=1e-5)
    if spaces is not CONTINUOUS:  # whose loop takes the standard deviation for 1
        np.testing.assert_allclose(gradient, gradient_by_differences(learner, expected), atol=1e-4)


def test_marwil_weighs_by_the_advantage_in_units_of_its_moving_size() -> None:
    algorithm = mf.MARWIL(beta=0.7, max_weight=3.0, value_coefficient=0.5, scale_start=2.0, scale_rate=0.25)
    learner, rows = make_learner(algorithm), columns(DISCRETE)
    value = forward(learner.module, "critic_torso", "critic_head", rows["obs"])[:, 0]
    advantage = rows["value_target"] - value
    mean_square = 4.0
    weights = np.minimum(np.exp(0.7 * advantage / np.sqrt(mean_square)), 3.0)

    def expected() -> float:
        now = forward(learner.module, "critic_torso", "critic_head", rows["obs"])[:, 0]
        policy = np.mean(-weights * log_likelihoods(learner, DISCRETE, rows))
        return float(policy + 0.5 * np.mean(0.5 * (rows["value_target"] - now) ** 2))

    terms, gradient, _ = loss_and_gradient(learner, rows)
    assert terms["policy"] + 0.5 * terms["value"] == pytest.approx(expected(), rel=1e-5)
    assert terms["scale"] == pytest.approx(np.sqrt(mean_square), rel=1e-6)
    learns = learner.parameters.flat.span(p for p in learner.module.parameters() if p.requires_grad)
    np.testing.assert_allclose(gradient[learns], gradient_by_differences(learner, expected)[learns], atol=1e-4)


def _batch(kind: type[mf.Batch], seed: int) -> mf.Batch:
    rows = columns(DISCRETE, seed)
    rest = {"reward": np.zeros(ROWS), "version": np.zeros(ROWS, np.int64), "advantage": rows["value_target"]}
    return kind({**rows, **rest}, {"length": np.array([ROWS]), "carried": np.zeros(1, bool)})


def test_what_is_kept_of_marwil_has_the_moving_size_and_goes_on_with_it() -> None:
    kept, fresh = make_learner(mf.MARWIL()), make_learner(mf.MARWIL(), seed=1)
    kept.update(_batch(mf.EstimatedBatch, 0))
    fresh.load_state(kept.state())
    size = np.mean(np.square(columns(DISCRETE, 0)["value_target"]))
    assert float(kept.module.mean_square) == pytest.approx(0.9 + 0.1 * size, rel=1e-5)
    assert float(fresh.module.mean_square) == float(kept.module.mean_square)
    for learner in (kept, fresh):
        learner.update(_batch(mf.EstimatedBatch, 1))
    np.testing.assert_array_equal(fresh.parameters.flat.vector.numpy(), kept.parameters.flat.vector.numpy())


def test_only_the_actor_is_published() -> None:
    for algorithm in (mf.BC(), mf.MARWIL(), mf.Clone()):
        actor: Any = algorithm.actor(DISCRETE, SMALL, seed=0)
        assert make_learner(algorithm).published["hunter"].flat.shape == actor.flat().shape


def test_settings_of_marwils_loss_can_be_scheduled() -> None:
    learner = make_learner(replace(mf.MARWIL(), beta=1.0))
    learner.set_schedule({"beta": 0.0, "value_coefficient": 0.0, "clip_range": 3.0})
    terms, _, _ = loss_and_gradient(learner, columns(DISCRETE))
    cloned, _, _ = loss_and_gradient(make_learner(mf.BC()), columns(DISCRETE))
    assert terms["policy"] == pytest.approx(cloned["policy"], rel=1e-6)


def test_compiled_updates_take_marwils_scheduled_settings() -> None:
    eager, compiled = (make_learner(replace(mf.MARWIL(), compile=compile)) for compile in (False, True))
    for max_weight in (20.0, 0.5):
        for learner in (eager, compiled):
            learner.set_schedule({"beta": 2.0, "max_weight": max_weight})
            learner.update(_batch(mf.EstimatedBatch, 0))
    vectors = [learner.parameters.flat.vector.numpy() for learner in (compiled, eager)]
    np.testing.assert_allclose(*vectors, atol=1e-5)
