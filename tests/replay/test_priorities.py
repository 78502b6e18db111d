"""The sum tree against plain arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.replay.sampling import SumTree

SIZES = [1, 2, 31, 32, 33, 1024, 1025, 40_000]


@pytest.mark.parametrize("size", SIZES)
def test_sums_follow_every_change(size: int) -> None:
    generator = np.random.default_rng(size)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(20):
        slots = np.unique(generator.integers(0, size, 10))
        weights = generator.random(len(slots))
        tree.set(slots, weights)
        plain[slots] = weights
        first, stop = sorted(generator.integers(0, size + 1, 2).tolist())
        weight = float(generator.integers(0, 2))
        if first < stop:
            tree.set_range(slice(first, stop), weight)
            plain[first:stop] = weight
        np.testing.assert_allclose(tree.total, plain.sum(), rtol=1e-12)
        np.testing.assert_array_equal(tree.get(np.arange(size)), plain)


@pytest.mark.parametrize("size", SIZES)
def test_finds_where_the_cumulated_weight_passes(size: int) -> None:
    generator = np.random.default_rng(size)
    weights = generator.integers(0, 4, size).astype(np.float64)
    weights[-1] = 1.0
    tree = SumTree(size)
    tree.set(np.arange(size), weights)
    mass = np.append(generator.random(200) * tree.total, [0.0, tree.total - 1.0])

    np.testing.assert_array_equal(tree.find(mass), np.searchsorted(np.cumsum(weights), mass, side="right"))


@given(
    weights=st.lists(st.floats(0, 1e3) | st.just(0.0), min_size=1, max_size=1100).filter(lambda w: sum(w) > 0),
    share=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_never_finds_a_slot_of_weight_zero(weights: list[float], share: list[float]) -> None:
    tree = SumTree(len(weights))
    tree.set_range(slice(0, len(weights)), np.array(weights))
    found = tree.find(np.array(share) * tree.total)
    assert (np.array(weights)[found] > 0).all()


def test_rounding_below_zero_finds_no_slot_of_weight_zero() -> None:
    tree = SumTree(64)
    tree.set(np.array([0, 33]), np.array([0.1, 0.2]))
    # In floats 0.1 + 0.2 - 0.2 > 0.1, so of the mass 0.1 less than nothing is left for the second family.
    np.testing.assert_array_equal(tree.find(np.array([0.1])), [33])


def test_of_a_slot_named_twice_the_last_counts() -> None:
    tree = SumTree(100)
    tree.set(np.array([7, 7]), np.array([5.0, 2.0]))
    assert tree.total == 2.0


def test_the_order_of_changes_leaves_no_trace() -> None:
    generator = np.random.default_rng(0)
    weights = generator.random(5000)
    once, often = SumTree(5000), SumTree(5000)
    once.set_range(slice(0, 5000), weights)
    for slots in np.array_split(generator.permutation(5000), 40):
        often.set(slots, np.full(len(slots), 1e9))
        often.set(slots, weights[slots])
    assert once.total == often.total
