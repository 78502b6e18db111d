"""Gradients that are found apart from being applied: their mean is that of all rows at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.batches.items import Gradients, Packed
from marlflow.learner.update_job import mean_gradients
from marlflow.stages import Average


def gradients(rows: int, seed: int) -> Gradients:
    rng = np.random.default_rng(seed)
    if not rows:
        return Gradients(np.zeros(3, np.float32), 0, {}, math.nan, 0)
    flat = rng.standard_normal(3).astype(np.float32)
    return Gradients(flat, rows, {"policy": rng.random()}, float(rng.integers(0, 9)), int(rng.integers(0, 3)))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 100))
def test_the_mean_is_over_rows(rows: list[int], seed: int) -> None:
    found = [gradients(count, seed + number) for number, count in enumerate(rows)]
    mean = mean_gradients(found)
    assert mean.rows == sum(rows)
    assert mean.rows_carried == sum(one.rows_carried for one in found)
    if not mean.rows:
        assert not mean.flat.any()
        assert math.isnan(mean.version_mean)
        return
    by_row = [one for one in found for _ in range(one.rows)]
    np.testing.assert_allclose(mean.flat, np.mean([one.flat for one in by_row], axis=0), atol=1e-5)
    assert mean.flat.dtype == np.float32
    assert mean.loss["policy"] == pytest.approx(np.mean([one.loss["policy"] for one in by_row]))
    assert mean.version_mean == pytest.approx(np.mean([one.version_mean for one in by_row]))


def test_of_one_it_is_itself_and_of_none_there_is_none() -> None:
    one = gradients(5, 0)
    mean = mean_gradients([one])
    np.testing.assert_array_equal(mean.flat, one.flat)
    assert (mean.rows, mean.loss, mean.version_mean) == (one.rows, one.loss, one.version_mean)
    with pytest.raises(ValueError, match="at least one"):
        mean_gradients([])


@given(rows=st.lists(st.integers(0, 5), max_size=12), batches=st.integers(1, 4))
def test_average_takes_so_many_that_have_rows_and_loses_none(rows: list[int], batches: int) -> None:
    average = Average(batches)
    emitted: list[Any] = []
    for number, count in enumerate(rows):
        before = len(average.held)
        packed: Any = Packed(count, (number,))
        made = average.add(packed)
        assert len(made) <= 1
        assert bool(made) == (count > 0 and before == batches - 1)
        emitted += made
    held = [payload for packed in average.held for payload in packed.payloads]
    sent = [payload for packed in emitted for payload in packed.payloads]
    assert sent + held == [number for number, count in enumerate(rows) if count]
    assert all(packed.rows == sum(rows[number] for number in packed.payloads) for packed in emitted)
