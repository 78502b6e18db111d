"""Prioritized sampling against its formulas (Schaul et al., 2016, arXiv:1511.05952, section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marlflow.base.arrays import Array
from marlflow.base.errors import InvalidInput
from marlflow.replay import Prioritized, ReplayBuffer, Uniform
from tests.replay.windowed import put
from tests.sentences import refusals

PRIORITY = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 0.2, 3.0])


def _filled(make_batch: Any, sampling: Prioritized, priority: Array = PRIORITY, capacity: int = 8) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, 1, 0.9, seed=7, sampling=sampling)
    put(buffer, make_batch([[0.0]] * len(priority), "o" * len(priority)))
    buffer.reprioritize(np.arange(len(priority)), priority)
    return buffer


def _probability(alpha: float, epsilon: float = 1e-6) -> Array:
    scaled: Array = (PRIORITY + epsilon) ** alpha
    probability: Array = scaled / scaled.sum()
    return probability


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_come_in_proportion_to_their_priority(make_batch: Any, alpha: float) -> None:
    buffer, want = _filled(make_batch, Prioritized(alpha=alpha)), _probability(alpha)
    draws, batch = 20_000, 5
    drawn = np.concatenate([buffer.draw(batch).row_id for _ in range(draws // batch)])
    count = np.bincount(drawn, minlength=8)
    # Stratified draws vary no more than independent ones, whose standard error this is.
    assert (np.abs(count - draws * want) <= 4 * np.sqrt(draws * want * (1 - want))).all()


def test_strata_leave_a_row_within_two_of_its_share(make_batch: Any) -> None:
    buffer, want = _filled(make_batch, Prioritized()), _probability(0.6)
    for _ in range(50):
        count = np.bincount(buffer.draw(64).row_id, minlength=8)
        assert (np.abs(count - 64 * want) < 2).all()


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_the_formula_over_the_largest_of_the_draw(make_batch: Any, beta: float) -> None:
    buffer = _filled(make_batch, Prioritized(beta=beta))
    for count in (1, 3, 64):
        drawn = buffer.draw(count)
        raw = (8 * _probability(0.6)[drawn.row_id]) ** -beta
        np.testing.assert_allclose(drawn.weight, raw / raw.max(), rtol=1e-5)
        assert drawn.weight.max() == 1.0


def test_beta_follows_its_schedule(make_batch: Any) -> None:
    buffer = _filled(make_batch, Prioritized(beta=0.4))
    buffer.set_schedule({"priority_beta": 0.0})
    np.testing.assert_array_equal(buffer.draw(9).weight, np.ones(9))
    with pytest.raises(InvalidInput, match=r"\[0, 1\], but its schedule gave 1.5"):
        buffer.set_schedule({"priority_beta": 1.5})
    buffer.set_schedule({"learning_rate": 0.5})  # others' settings are not its concern
    np.testing.assert_array_equal(buffer.draw(9).weight, np.ones(9))


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_a_new_row_has_the_largest_priority_seen(make_batch: Any, alpha: float) -> None:
    buffer = _filled(make_batch, Prioritized(alpha=alpha, beta=1.0), np.array([9.0, 0.5]))
    buffer.reprioritize(np.array([0]), np.array([0.5]))
    put(buffer, make_batch([[0.0]], "o"))
    # Weights undo the probabilities, so with beta 1 their ratio is that of the priorities to the alpha, inverted.
    drawn = buffer.draw(200)
    weight = {row: float(drawn.weight[drawn.row_id == row][0]) for row in (0, 1, 2)}
    assert weight[0] == weight[1] == 1.0
    assert weight[2] == pytest.approx((0.5 / 9.0) ** alpha, rel=1e-4)


def test_new_rows_begin_alike(make_batch: Any) -> None:
    buffer = ReplayBuffer(8, 1, 0.9, seed=0, sampling=Prioritized())
    put(buffer, make_batch([[0.0] * 8], "o"))
    drawn = buffer.draw(8)
    np.testing.assert_array_equal(drawn.row_id, np.arange(8))
    np.testing.assert_array_equal(drawn.weight, np.ones(8))


def test_priorities_of_rows_that_are_gone_are_counted_and_change_nothing(make_batch: Any) -> None:
    buffer, other = (_filled(make_batch, Prioritized()) for _ in range(2))
    for each in (buffer, other):
        put(each, make_batch([[0.0], [0.0]], "oo"))
    buffer.reprioritize(np.array([0, 1, 99]), np.array([50.0, 50.0, 50.0]))
    assert buffer.stale_priorities == 3
    for _ in range(5):
        one, two = buffer.draw(16), other.draw(16)
        np.testing.assert_array_equal(one.row_id, two.row_id)
        np.testing.assert_array_equal(one.weight, two.weight)
    put(buffer, make_batch([[0.0]], "o"))
    # The newest row is as likely as the likeliest that counted, of priority 4; the unlikeliest left has 0.2.
    assert buffer.draw(500).weight.min() == pytest.approx((0.2 / 4.0) ** (0.6 * 0.4), rel=1e-4)


def test_evicted_rows_are_never_drawn(make_batch: Any) -> None:
    buffer = _filled(make_batch, Prioritized(), np.full(8, 100.0), capacity=8)
    buffer.reprioritize(np.arange(8), np.full(8, 1000.0))
    put(buffer, make_batch([[0.0] * 5], "o"))
    buffer.reprioritize(np.arange(8, 13), np.full(5, 1e-9))
    for _ in range(20):
        drawn = buffer.draw(64).row_id
        assert drawn.min() >= 5
        assert drawn.max() <= 12


def test_bad_priorities_are_refused(make_batch: Any) -> None:
    buffer = _filled(make_batch, Prioritized())
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(InvalidInput, match="finite and at least 0"):
            buffer.reprioritize(np.array([0]), np.array([bad]))
    with pytest.raises(InvalidInput, match=r"\(2,\) row ids came with \(1,\) priorities"):
        buffer.reprioritize(np.array([0, 1]), np.array([1.0]))


def test_uniform_ignores_priorities(make_batch: Any) -> None:
    buffer = ReplayBuffer(8, 1, 0.9, seed=0, sampling=Uniform())
    put(buffer, make_batch([[0.0] * 8], "o"))
    buffer.reprioritize(np.array([0]), np.array([1e9]))
    assert (buffer.draw(100).row_id == 0).sum() < 50
    np.testing.assert_array_equal(buffer.draw(5).weight, np.ones(5))


def test_all_wrong_terms_are_told_at_once() -> None:
    assert len(refusals(InvalidInput, Prioritized, alpha=-0.1, beta=1.1, epsilon=0.0)) == 3


def test_a_run_that_is_resumed_with_another_beta_has_its_own(make_batch: Any) -> None:
    before, then = _filled(make_batch, Prioritized(beta=0.4)), ReplayBuffer(8, 1, 0.9, 7, Prioritized(beta=1.0))
    then.load_state(before.state(), [before.rows(0)])
    drawn = then.draw(64)
    raw = 1 / (8 * _probability(0.6)[drawn.row_id])
    np.testing.assert_allclose(drawn.weight, raw / raw.max(), rtol=1e-5)
