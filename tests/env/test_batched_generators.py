"""Many generators at once draw what numpy's own draw one by one."""

import numpy as np
import pytest

from marlflow.env.batched.generators import FewGenerators, Generators, generators


@pytest.mark.parametrize("kind", [Generators, FewGenerators])
def test_the_numbers_are_those_of_default_rng(kind):
    seeds = np.concatenate([np.arange(40), [2**31 - 1, 2**32 - 1], np.random.default_rng(0).integers(2**31, size=100)])
    ours, numpys = kind(seeds), [np.random.default_rng(seed) for seed in seeds]
    # Whole numbers take half of 64 random bits, and numpy keeps the other half for the next.
    for high in (3, 2, 1, 7, 3_000_000_000):
        np.testing.assert_array_equal(ours.integers(high), [one.integers(high) for one in numpys])
        np.testing.assert_array_equal(ours.uniforms(1, -1.0, 1.0), [one.uniform(-1.0, 1.0, 1) for one in numpys])
        np.testing.assert_array_equal(ours.uniforms(5, -0.05, 0.05), [one.uniform(-0.05, 0.05, 5) for one in numpys])


def test_few_seeds_and_many_give_the_same_kind_of_numbers():
    few, many = generators(np.arange(3)), generators(np.arange(100))
    assert (type(few), type(many)) == (FewGenerators, Generators)
    np.testing.assert_array_equal(few.uniforms(4), many.uniforms(4)[:3])
