import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.arrays import Array
from marlflow.batches.batch import EstimatedBatch
from marlflow.learner.advantages import advantages, normalized
from tests.learner.experience import ragged


class Critic:
    """Values are the sum of the observation."""

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        return obs.sum(1).astype(np.float32)


@given(st.lists(st.integers(1, 12), max_size=6), st.integers(0, 100), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_equals_a_loop_over_each_segment(lengths: list[int], seed: int, gae_lambda: float) -> None:
    batch, discount = ragged(lengths, seed), 0.9
    found = advantages(batch, Critic(), discount, gae_lambda)
    value = batch.columns["obs"].sum(1)
    expected, start = np.zeros(batch.rows), 0
    for segment, length in enumerate(lengths):
        following = 0.0 if batch.segments["terminated"][segment] else batch.segments["bootstrap_obs"][segment].sum()
        later = 0.0
        for row in reversed(range(start, start + length)):
            later = batch.columns["reward"][row] + discount * following - value[row] + discount * gae_lambda * later
            expected[row], following = later, value[row]
        start += length
    assert isinstance(found, EstimatedBatch)
    np.testing.assert_allclose(found.columns["advantage"], expected, atol=1e-4)
    np.testing.assert_allclose(found.columns["value_target"], expected + value, atol=1e-4)
    np.testing.assert_allclose(found.columns["value"], value, atol=1e-6)
    assert {found.columns[name].dtype for name in ("value", "advantage", "value_target")} == {np.dtype(np.float32)}


def test_normalized_over_all_rows() -> None:
    found = normalized(advantages(ragged([5, 9]), Critic(), 0.99, 0.95)).columns["advantage"]
    np.testing.assert_allclose([found.mean(), found.std()], [0.0, 1.0], atol=1e-5)
