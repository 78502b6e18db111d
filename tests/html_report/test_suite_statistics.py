"""Statistics over tasks, against other implementations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, trim_mean

from marlflow.html_report.statistics import profile, suite_improvement, suite_iqm
from marlflow.html_report.suite_report import SuiteScores, iqm_names, notes_on, suite_results

GENERATOR = np.random.default_rng(3)
FIRST = [GENERATOR.normal(0.5, 0.2, size=5), GENERATOR.normal(0.1, 0.1, size=5), GENERATOR.normal(0.9, 0.3, size=7)]
SECOND = [GENERATOR.normal(0.4, 0.2, size=6), np.round(GENERATOR.normal(0.2, 0.1, size=5), 1), FIRST[2][:3]]


def test_the_interquartile_mean_is_that_of_all_runs() -> None:
    assert suite_iqm(FIRST).value == pytest.approx(trim_mean(np.concatenate(FIRST), 0.25))


def test_the_probability_of_improvement_is_the_mean_of_mann_whitney_s_u() -> None:
    shares = [mannwhitneyu(a, b).statistic / (len(a) * len(b)) for a, b in zip(FIRST, SECOND, strict=True)]
    found = suite_improvement(FIRST, SECOND)
    assert found.value == pytest.approx(np.mean(shares))
    assert suite_improvement(SECOND, FIRST).value == pytest.approx(1 - found.value)
    assert found.low is not None
    assert found.high is not None
    assert (found.complement().low, found.complement().high) == pytest.approx((1 - found.high, 1 - found.low))
    assert found.low < found.value < found.high


def test_a_profile_is_the_share_above_each_score() -> None:
    at = np.linspace(-0.5, 1.5, 41)
    found = profile(FIRST, at)
    runs = [score for of_task in FIRST for score in of_task]
    assert found.share.tolist() == pytest.approx([sum(score > one for score in runs) / len(runs) for one in at])
    assert found.low is not None
    assert found.high is not None
    assert (found.low <= found.share + 1e-12).all()
    assert (found.share <= found.high + 1e-12).all()


def test_intervals_are_those_of_all_resamples_within_tasks() -> None:
    # Of two runs on each of two tasks, all 16 resamples can be listed; none mixes the tasks.
    tasks = [np.array([0.0, 1.0]), np.array([10.0, 14.0])]
    resamples = [[*one, *other] for one, other in itertools.product(*(itertools.product(of, of) for of in tasks))]
    exact = np.percentile([trim_mean(one, 0.25) for one in resamples], [2.5, 97.5])
    found = suite_iqm(tasks)
    assert [found.low, found.high] == pytest.approx(exact.tolist())
    at = np.array([0.5, 12.0])
    shares = np.array([(np.array(one)[:, None] > at).mean(axis=0) for one in resamples])
    band = profile(tasks, at)
    assert band.low is not None
    assert band.high is not None
    assert np.array([band.low, band.high]) == pytest.approx(np.percentile(shares, [2.5, 97.5], axis=0))


def test_single_runs_have_no_intervals() -> None:
    tasks = [np.array([0.0]), np.array([1.0])]
    assert suite_iqm(tasks).low is None
    assert suite_improvement(tasks, tasks).low is None
    assert profile(tasks, np.array([0.5])).low is None


def test_few_runs_tell_no_difference_from_chance() -> None:
    def all_better(tasks: int, seeds: int) -> bool:
        first, second = [np.ones(seeds)] * tasks, [np.zeros(seeds)] * tasks
        found = suite_improvement(first, second)
        assert found.value == 1.0
        return found.low is not None

    # By chance in 2 of 6 cases, 2 of 20, 2 of 36; in 2 of 70, 2 of 216, 2 of 400.
    assert not any(all_better(*sizes) for sizes in ((1, 2), (1, 3), (2, 2)))
    assert all(all_better(*sizes) for sizes in ((1, 4), (3, 2), (2, 3)))


def test_a_profile_begins_where_all_runs_are_above() -> None:
    scores: Any = {("a", "x"): [0.0, 1.0], ("a", "y"): [0.0, 0.5]}
    made = SuiteScores("some", {"a": (0.0, 1.0)}, ["x", "y"], scores, dict.fromkeys(scores, 100))
    profiles = suite_results(made).profiles
    assert [one.share[0] for one in profiles.values()] == [1.0, 1.0]
    assert iqm_names(made) == "mean [range]"


def test_scores_are_normalized_by_task_and_gaps_are_named() -> None:
    scores = {("a", "x"): [15.0, 20.0], ("b", "x"): [1.0], ("a", "y"): [10.0], ("b", "y"): []}
    made = SuiteScores(
        "some", {"a": (10.0, 20.0), "b": (0.0, 2.0)}, ["x", "y"], scores, dict.fromkeys(scores, 100), missing=["y on b"]
    )
    results = suite_results(made)
    assert {(row.task, row.algorithm): row.normalized for row in results.rows} == {
        ("a", "x"): 0.75,
        ("b", "x"): 0.5,
        ("a", "y"): 0.0,
    }
    assert results.iqms["x"].value == pytest.approx(np.mean([0.5, 1.0, 0.5]))
    assert set(results.iqms) == {"x"}
    assert not results.improvements
    notes = " ".join(notes_on(made))
    assert "1 run failed, and left out: y on b." in notes
    assert "y: without a score on each task" in notes
    assert "budget" not in notes
    assert "The budget was cut: runs had 0.25 of their env steps" in " ".join(notes_on(replace(made, budget=0.25)))
    assert "Runs had 2 times the suite's env steps" in " ".join(notes_on(replace(made, budget=2.0)))
