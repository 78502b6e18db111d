"""Statistics over training seeds, and over the tasks of a benchmark: interquartile mean, probability of improvement.

Over tasks, scores are normalized, and come as one array of runs for each task. Their intervals come from the stratified
bootstrap: runs are resampled within each task, and tasks are fixed.

Source: Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the Statistical Precipice,
https://arxiv.org/abs/2108.13264, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 4_000
# A probability has few possible values, so that its percentiles may jump.
_RESAMPLES_OF_PAIRS = 20_000
TAILS = (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE))
# Numbers that are sorted at once: more resamples of many points would need too much memory.
_MOST_NUMBERS = 4_000_000


@dataclass(frozen=True, slots=True)
class BootstrapInterval:
    """An estimate with the 95 % interval around it; `low` and `high` are None for a single run."""

    value: float
    low: float | None = None
    high: float | None = None

    def complement(self) -> BootstrapInterval:
        """Return the estimate of 1 minus this share."""
        if self.low is None or self.high is None:
            return BootstrapInterval(1.0 - self.value)
        return BootstrapInterval(1.0 - self.value, 1.0 - self.high, 1.0 - self.low)


@dataclass(frozen=True, slots=True)
class SummaryNames:
    """The names of the summary of some runs: of its `statistic`, and of its `interval`, which is empty for one run."""

    statistic: str
    interval: str

    @property
    def text(self) -> str:
        """Both names, in the form in which pages show the numbers."""
        return f"{self.statistic} [{self.interval}]" if self.interval else self.statistic


def summary_names(runs: int) -> SummaryNames:
    """Return the names of the two numbers of `iqm_interval` for this number of runs.

    Up to three, nothing is left out of the mean. Up to four, more than 2.5 % of the resamples have the least value, or
    the greatest, so that the percentiles are the range of the runs.

    >>> [summary_names(runs).text for runs in (1, 2, 4, 5)]
    ['value', 'mean [range]', 'IQM [range]', 'IQM [95 %]']
    """
    statistic = "value" if runs == 1 else "mean" if runs < 4 else "IQM"
    return SummaryNames(statistic, "" if runs == 1 else "range" if runs < 5 else f"{CONFIDENCE:.0%}".replace("%", " %"))


def chance_of_order(runs: int, others: int) -> float:
    """Return the chance that all of some runs are better than all others, or all worse, if they are of one kind.

    >>> chance_of_order(2, 2), chance_of_order(3, 3)
    (0.3333333333333333, 0.1)
    """
    return 2 / comb(runs + others, runs)


def can_differ(runs: int, others: int) -> bool:
    """Return whether two groups are large enough that some result would be less likely than 5 % by chance.

    >>> can_differ(3, 3), can_differ(4, 4)
    (False, True)
    """
    return chance_of_order(runs, others) <= 1 - CONFIDENCE


def iqm(values: Floats) -> Floats:
    """Return the interquartile mean over the first axis: the mean without the lowest and the highest quarter.

    `n // 4` of `n` values are left out at each end, so it is the mean if there are fewer than four values.

    >>> float(iqm(np.array([0.0, 1.0, 2.0, 3.0, 100.0])))
    2.0
    """
    cut = len(values) // 4
    return np.asarray(np.mean(np.sort(values, axis=0)[cut : len(values) - cut], axis=0), np.float64)


def iqm_interval(values: Sequence[float]) -> BootstrapInterval:
    """Return the interquartile mean of some runs, at least one, with its percentile bootstrap interval."""
    points = np.asarray(values, np.float64)[:, None]
    low, high = iqm_band(points)
    middle = float(iqm(points)[0])
    return BootstrapInterval(middle) if len(points) < 2 else BootstrapInterval(middle, float(low[0]), float(high[0]))


def iqm_band(values: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the intervals of `iqm`, for each point of `[runs, points]`.

    Whole runs are resampled, the same ones at all points.
    """
    runs, points = values.shape
    # Always the same resamples, so that a report can be repeated.
    chosen = np.random.default_rng(0).integers(runs, size=(runs, RESAMPLES))
    lows, highs = np.empty(points), np.empty(points)
    width = max(_MOST_NUMBERS // (RESAMPLES * runs), 1)
    for start in range(0, points, width):
        part = slice(start, start + width)
        resampled = values[:, part][chosen]  # of shape [runs, resamples, points]
        lows[part], highs[part] = np.percentile(iqm(resampled), TAILS, axis=0)
    return lows, highs


def improvement(values: Sequence[float], others: Sequence[float]) -> BootstrapInterval:
    """Return the probability that a run of the first is better than one of the others; a tie counts half.

    The runs of both are resampled for its interval, which is None if they are too few to tell any difference from
    chance: the interval of 2 runs that are both better would be [1, 1].

    >>> improvement([3.0], [1.0, 3.0])
    BootstrapInterval(value=0.75, low=None, high=None)
    """
    first, second = np.asarray(values, np.float64), np.asarray(others, np.float64)
    wins = np.heaviside(first[:, None] - second[None, :], 0.5)
    middle = float(wins.mean())
    if not can_differ(*wins.shape):
        return BootstrapInterval(middle)
    generator = np.random.default_rng(0)
    rows, columns = (
        generator.multinomial(runs, np.full(runs, 1 / runs), _RESAMPLES_OF_PAIRS).astype(float) for runs in wins.shape
    )
    low, high = np.percentile(((rows @ wins) * columns).sum(axis=1) / wins.size, TAILS)
    return BootstrapInterval(middle, float(low), float(high))


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

    It is the mean over tasks, which both have in the same order. It has no interval if the runs are too few to tell any
    difference from chance, as in `improvement`.

    >>> suite_improvement([np.array([1.0]), np.array([1.0])], [np.array([0.0]), np.array([1.0])]).value
    0.75
    """
    value = _improvement([one[:, None] for one in first], [one[:, None] for one in second])[0]
    sizes = [(len(one), len(other)) for one, other in zip(first, second, strict=True)]
    chance = 2 * prod(chance_of_order(*of_task) / 2 for of_task in sizes)
    if not (_can_resample(first) and _can_resample(second)) or chance > 1 - CONFIDENCE:
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
