"""Statistics over the tasks of a benchmark: interquartile mean, performance profile, probability of improvement.

Scores are normalized, and come as one array of runs for each task. Intervals are of the stratified bootstrap: runs are
resampled within each task, and tasks are fixed.

Source: Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the Statistical Precipice,
https://arxiv.org/abs/2108.13264, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.html_report.statistics import RESAMPLES, TAILS, BootstrapInterval, Floats, iqm


@dataclass(frozen=True, slots=True)
class Profile:
    """The share of all runs with a score above each of `at`, and its pointwise interval; no ends for single runs."""

    at: Floats
    share: Floats
    low: Floats | None = None
    high: Floats | None = None


def suite_iqm(by_task: Sequence[Floats]) -> BootstrapInterval:
    """Return the interquartile mean over the runs of all tasks.

    >>> suite_iqm([np.array([0.0]), np.array([0.5]), np.array([1.0]), np.array([9.0])]).value
    0.75
    """
    value = float(iqm(np.concatenate(by_task)))
    if not _can_resample(by_task):
        return BootstrapInterval(value)
    low, high = np.percentile(iqm(_resampled(by_task)), TAILS)
    return BootstrapInterval(value, float(low), float(high))


def profile(by_task: Sequence[Floats], at: Floats) -> Profile:
    """Return the performance profile at some scores: each task counts as often as it has runs."""
    share = (np.concatenate(by_task)[:, None] > at).mean(axis=0)
    if not _can_resample(by_task):
        return Profile(at, share)
    resampled = _resampled(by_task)
    above = [(resampled > one).mean(axis=0) for one in at]
    low, high = np.percentile(above, TAILS, axis=1)
    return Profile(at, share, low, high)


def suite_improvement(first: Sequence[Floats], second: Sequence[Floats]) -> BootstrapInterval:
    """Return the probability that a run of the first is better than one of the second on a task; a tie counts half.

    It is the mean over tasks, which both have in the same order.

    >>> suite_improvement([np.array([1.0]), np.array([1.0])], [np.array([0.0]), np.array([1.0])]).value
    0.75
    """
    value = _improvement([one[:, None] for one in first], [one[:, None] for one in second])[0]
    if not (_can_resample(first) and _can_resample(second)):
        return BootstrapInterval(float(value))
    # Different random numbers for both: equal ones would pair their runs.
    chances = _improvement(_resampled_tasks(first, 0), _resampled_tasks(second, 1))
    low, high = np.percentile(chances, TAILS)
    return BootstrapInterval(float(value), float(low), float(high))


def _improvement(first: Sequence[Floats], second: Sequence[Floats]) -> Floats:
    """Return the mean over tasks for each resample; arrays are [runs, resamples]."""
    of_tasks = [
        np.heaviside(one[:, None] - other[None], 0.5).mean(axis=(0, 1))
        for one, other in zip(first, second, strict=True)
    ]
    return np.asarray(np.mean(of_tasks, axis=0), np.float64)


def _can_resample(by_task: Sequence[Floats]) -> bool:
    return all(len(runs) > 1 for runs in by_task)


def _resampled(by_task: Sequence[Floats]) -> Floats:
    return np.concatenate(_resampled_tasks(by_task, 0))


def _resampled_tasks(by_task: Sequence[Floats], seed: int) -> list[Floats]:
    # Always the same resamples, so that a report can be repeated.
    generator = np.random.default_rng(seed)
    return [runs[generator.integers(len(runs), size=(len(runs), RESAMPLES))] for runs in by_task]
