"""A learner computes the same on a GPU as on a CPU, up to rounding, also after a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marlflow.learner.compute import Compute
from tests.learner.group import KINDS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
ON_GPU, IN_BFLOAT16 = Compute("cuda"), Compute("cuda", "bfloat16")


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_is_that_on_a_cpu(kind: str) -> None:
    here, there = KINDS[kind].learner(3), KINDS[kind].learner(3, ON_GPU)
    assert here.publish().keys() == there.publish().keys()
    start = {name: weights.flat.copy() for name, weights in here.publish().items()}
    for name, weights in there.publish().items():
        np.testing.assert_array_equal(weights.flat, start[name])
    for seed in range(3):
        found, expected = (
            there.update(KINDS[kind].batch(60, seed), 2, 16),
            here.update(KINDS[kind].batch(60, seed), 2, 16),
        )
        assert (found.rows, found.updates) == (expected.rows, expected.updates)
        assert found.loss == pytest.approx(expected.loss, rel=2e-3, abs=2e-3)
    for name, weights in there.publish().items():
        moved = np.abs(here.publish()[name].flat - start[name]).max()
        assert np.abs(weights.flat - here.publish()[name].flat).max() < 0.05 * moved


@pytest.mark.parametrize("compute", [ON_GPU, IN_BFLOAT16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(kind: str, compute: Compute) -> None:
    straight, other = KINDS[kind].learner(3, compute), KINDS[kind].learner(4, compute)
    straight.update(KINDS[kind].batch(60, 0), 2, 16)
    other.load_state(straight.state())
    for learner in (straight, other):
        learner.update(KINDS[kind].batch(60, 1), 2, 16)
    for name, weights in other.publish().items():
        np.testing.assert_allclose(weights.flat, straight.publish()[name].flat, rtol=0, atol=1e-6)
