"""Statistics over seeds, against scipy, enumeration, and naive loops."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from marlflow.html_report.statistics import (
    can_differ,
    chance_of_order,
    improvement,
    iqm,
    iqm_band,
    iqm_interval,
    summary_names,
)

returns = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30)


@given(returns)
def test_iqm_is_the_trimmed_mean_of_scipy(values: list[float]) -> None:
    assert float(iqm(np.array(values))) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-9, abs=1e-9)


def test_iqm_of_several_points_is_that_of_each() -> None:
    values = np.random.default_rng(3).normal(size=(9, 4))
    assert iqm(values).tolist() == [float(iqm(column)) for column in values.T]


TEN = [-0.36, 1.2, 1.4, -0.06, 0.13, -0.64, -1.09, -1.2, -0.84, 0.6]
# rliable 1.2.0 with arch 7.2.0: aggregate_iqm, and get_interval_estimates with 50,000 resamples.
RLIABLE: list[tuple[list[float], float, float, float]] = [
    ([-0.8, -1.32, -0.25, 0.42, 1.14], -0.21, -1.14666667, 0.9),
    ([-1.1, -0.73, -0.78, 0.27, -0.25, 0.13, 0.84, 0.86, 0.48, -0.45], -0.09166667, -0.59833333, 0.47166667),
    ([*TEN, 0.32, 0.41, -0.49, -0.91, -0.9, -1.0, 0.93, 0.02, -0.46, -0.24], -0.262, -0.639, 0.186),
]


@pytest.mark.parametrize(("scores", "expected", "low", "high"), RLIABLE)
def test_iqm_and_interval_are_those_of_rliable(scores: list[float], expected: float, low: float, high: float) -> None:
    found = iqm_interval(scores)
    assert found.value == pytest.approx(expected)
    assert found.low == pytest.approx(low, abs=0.03)
    assert found.high == pytest.approx(high, abs=0.03)


def test_improvement_is_that_of_rliable() -> None:
    found = improvement([0.85, 1.32, 0.83, -0.8, 1.41, 0.95, -0.04, 1.08], [0.19, -0.52, -0.41, -2.44, 1.8, 1.14])
    # rliable's probability_of_improvement, with 20,000 resamples.
    assert found.value == pytest.approx(0.625)
    assert found.low == pytest.approx(0.29166667, abs=0.025)
    assert found.high == pytest.approx(0.9375, abs=0.025)


@pytest.mark.parametrize("runs", [2, 3, 4, 5])
def test_the_interval_is_that_of_all_resamples(runs: int) -> None:
    """Of so few runs all resamples can be listed; a percentile may lie between two of them."""
    scores = np.random.default_rng(runs).normal(size=runs)
    every = sorted(float(iqm(scores[list(chosen)])) for chosen in itertools.product(range(runs), repeat=runs))
    found = iqm_interval(scores.tolist())
    for end, share in ((found.low, 0.025), (found.high, 0.975)):
        assert end is not None
        near = every[int(max(share - 0.01, 0) * (len(every) - 1)) : math.ceil((share + 0.01) * (len(every) - 1)) + 1]
        assert min(near) - 1e-12 <= end <= max(near) + 1e-12


def test_bands_are_intervals_of_scipys_bootstrap() -> None:
    values = np.random.default_rng(5).normal(size=(12, 30))
    low, high = iqm_band(values)

    def trimmed(sample: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(stats.trim_mean(sample, 0.25, axis=axis))

    expected = stats.bootstrap(
        (values,), trimmed, axis=0, method="percentile", n_resamples=4000, rng=np.random.default_rng(0)
    ).confidence_interval
    assert np.abs(low - expected.low).max() < 0.12
    assert np.abs(high - expected.high).max() < 0.12
    assert np.all(low <= iqm(values))
    assert np.all(iqm(values) <= high)


def test_bands_do_not_depend_on_how_points_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(6).normal(size=(5, 7))
    whole = iqm_band(values)
    monkeypatch.setattr("marlflow.html_report.statistics._MOST_NUMBERS", 1)
    assert np.array_equal(whole, iqm_band(values))


def test_one_run_has_no_interval_and_equal_runs_have_one_of_no_width() -> None:
    one, equal = iqm_interval([3.0]), iqm_interval([2.0] * 5)
    assert (one.value, one.low, one.high) == (3.0, None, None)
    assert (equal.value, equal.low, equal.high) == (2.0, 2.0, 2.0)


def test_95_percent_intervals_of_many_runs_have_the_true_value_about_as_often() -> None:
    rng = np.random.default_rng(7)
    # Each point is an experiment of its own, of 40 seeds.
    low, high = iqm_band(rng.normal(size=(40, 600)))
    assert 0.91 <= np.mean((low <= 0.0) & (high >= 0.0)) <= 0.98


@settings(max_examples=25)
@given(*[st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=8)] * 2)
def test_improvement_is_the_share_of_pairs(first: list[float], second: list[float]) -> None:
    found = improvement(first, second)
    wins = sum(1.0 if one > other else 0.5 if one == other else 0.0 for one in first for other in second)
    assert found.value == pytest.approx(wins / (len(first) * len(second)))
    ranks = stats.mannwhitneyu(first, second).statistic / (len(first) * len(second))
    assert found.value == pytest.approx(ranks)
    if found.low is not None and found.high is not None:
        assert 0.0 <= found.low <= found.value <= found.high <= 1.0 or len(first) < 4 or len(second) < 4


def test_the_interval_of_improvement_is_that_of_all_resamples() -> None:
    first, second = [1.0, 4.0, 6.0, 9.0], [2.0, 3.0, 5.0, 7.0]
    every = [
        sum(x > y for x in one for y in other) / 16
        for one in itertools.product(first, repeat=4)
        for other in itertools.product(second, repeat=4)
    ]
    found = improvement(first, second)
    assert found.low == pytest.approx(np.percentile(every, 2.5), abs=0.06)
    assert found.high == pytest.approx(np.percentile(every, 97.5), abs=0.06)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12, unique=True))
def test_what_is_called_a_range_is_one_and_what_is_called_a_mean_is_one(values: list[int]) -> None:
    names, found = summary_names(len(values)), iqm_interval([float(value) for value in values])
    is_range = [found.low, found.high] == pytest.approx([min(values), max(values)])
    assert is_range == (names.interval == "range")
    if names.statistic == "mean":
        assert found.value == pytest.approx(np.mean(values))


@pytest.mark.parametrize(("runs", "others"), [(2, 2), (2, 3), (3, 3), (3, 4), (2, 8), (4, 4), (3, 5), (5, 5)])
def test_groups_that_cannot_differ_are_those_whose_every_order_is_likely(runs: int, others: int) -> None:
    """By all orders of so many runs of one kind: how often one group is wholly above the other."""
    orders = list(itertools.combinations(range(runs + others), runs))
    apart = sum(max(order) == runs - 1 or min(order) == others for order in orders) / len(orders)
    assert chance_of_order(runs, others) == pytest.approx(apart)
    assert can_differ(runs, others) == (apart <= 0.05)
    better = improvement([10.0 + run for run in range(runs)], [float(other) for other in range(others)])
    assert better.value == 1.0
    assert (better.low is not None) == can_differ(runs, others)
