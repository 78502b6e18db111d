"""The report of a benchmark: scores on each task, and over all tasks, on one page that needs no network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import combinations
from pathlib import Path

import numpy as np

from marlflow.base.files import replacing
from marlflow.html_report import texts
from marlflow.html_report.charts import look, profiles
from marlflow.html_report.page import GENERATOR, is_clear, templates
from marlflow.html_report.statistics import (
    RESAMPLES,
    BootstrapInterval,
    Floats,
    Profile,
    can_differ,
    profile,
    suite_improvement,
    suite_iqm,
    summary_names,
)
from marlflow.league.comparison import Estimate, mean_estimate

_POINTS = 201
_ENOUGH_SEEDS = 5


@dataclass(frozen=True, slots=True)
class SuiteScores:
    """The scores of a benchmark, by task and algorithm one for each run; `limits` of a task are the scores 0 and 1.

    `about` are sentences on how scores were made; runs had `budget` times the suite's env steps; `env_steps` of
    a run are by task and algorithm. `missing` are the names of runs without a score.
    """

    suite: str
    limits: Mapping[str, tuple[float, float]]
    algorithms: Sequence[str]
    scores: Mapping[tuple[str, str], Sequence[float]]
    env_steps: Mapping[tuple[str, str], int]
    about: Sequence[str] = ()
    budget: float = 1.0
    missing: Sequence[str] = ()

    def normalized(self, algorithm: str) -> list[Floats]:
        """Return an algorithm's normalized scores, an array of runs for each task."""
        of_tasks = [(np.array(self.scores[task, algorithm]), low, high) for task, (low, high) in self.limits.items()]
        return [(scores - low) / (high - low) for scores, low, high in of_tasks]

    @property
    def compared(self) -> list[str]:
        """The algorithms that have a score on each task; only these appear in comparisons over all tasks."""
        return [one for one in self.algorithms if all(self.scores.get((task, one)) for task in self.limits)]


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """The mean score of an algorithm on a task, with its interval over seeds; shown with `digits` digits."""

    task: str
    algorithm: str
    scores: Sequence[float]
    mean: Estimate
    normalized: float
    env_steps: int
    digits: int


@dataclass(frozen=True, slots=True)
class SuiteResults:
    """The numbers of a report: rows by task, and over all tasks IQMs, profiles and probabilities of improvement."""

    rows: Sequence[ScoreRow]
    iqms: Mapping[str, BootstrapInterval]
    profiles: Mapping[str, Profile]
    improvements: Mapping[tuple[str, str], BootstrapInterval]


def suite_results(scores: SuiteScores) -> SuiteResults:
    """Return the results of a benchmark."""
    rows = [
        _row(scores, task, one) for task in scores.limits for one in scores.algorithms if scores.scores.get((task, one))
    ]
    normalized = {algorithm: scores.normalized(algorithm) for algorithm in scores.compared}
    every = [score for by_task in normalized.values() for runs in by_task for score in runs]
    low, high = min([0.0, *every]), max([1.0, *every])
    # From where all runs are above.
    at = np.linspace(low - (high - low) / _POINTS, high, _POINTS) if every else np.empty(0)
    improvements = dict[tuple[str, str], BootstrapInterval]()
    for one, other in combinations(normalized, 2):
        improvements[one, other] = found = suite_improvement(normalized[one], normalized[other])
        improvements[other, one] = found.complement()
    return SuiteResults(
        rows,
        {one: suite_iqm(by_task) for one, by_task in normalized.items()},
        {one: profile(by_task, at) for one, by_task in normalized.items()},
        improvements,
    )


def _row(scores: SuiteScores, task: str, algorithm: str) -> ScoreRow:
    of_runs, (low, high) = scores.scores[task, algorithm], scores.limits[task]
    mean = mean_estimate(of_runs)
    digits = max(0, 3 - math.floor(math.log10(high - low)))
    normalized = (mean.value - low) / (high - low)
    return ScoreRow(task, algorithm, of_runs, mean, normalized, scores.env_steps[task, algorithm], digits)


def write_suite_report(scores: SuiteScores, results: SuiteResults, page: Path) -> None:
    """Write the report of a benchmark."""
    looks = {algorithm: look(place) for place, algorithm in enumerate(scores.algorithms)}
    chart = profiles([(results.profiles[one], looks[one]) for one in scores.compared], "profiles")
    content = (
        templates()
        .get_template("suite.html")
        .render(
            scores=scores,
            results=results,
            looks=looks,
            chart=chart,
            notes=list(notes_on(scores)),
            generator=GENERATOR,
            version=metadata.version("marlflow"),
            resamples=RESAMPLES,
            is_clear=is_clear,
            summary=iqm_names(scores),
        )
    )
    with replacing(page) as aside:
        aside.write_text(content, encoding="utf-8")


def iqm_names(scores: SuiteScores) -> str:
    """Return the names of the numbers over all tasks, which depend on how few runs an algorithm has."""
    of_tasks = [[len(runs) for runs in scores.normalized(one)] for one in scores.compared]
    names = summary_names(min(map(sum, of_tasks), default=1))
    return names.text if all(runs > 1 for one in of_tasks for runs in one) else names.statistic


def notes_on(scores: SuiteScores) -> Iterator[str]:
    """Yield sentences on limits of the comparison."""
    if scores.budget < 1:
        yield (
            f"The budget was cut: runs had {scores.budget:g} of their env steps, and their schedules were shortened as "
            "much. Batches, replays and warm-ups were not, so this is a first look, and no result of the suite."
        )
    elif scores.budget > 1:
        yield f"Runs had {scores.budget:g} times the suite's env steps, and schedules as many times as long."
    if scores.missing:
        yield f"{texts.count(len(scores.missing), 'run')} failed, and left out: {'; '.join(scores.missing)}."
    if lacking := [one for one in scores.algorithms if one not in scores.compared]:
        yield f"{', '.join(lacking)}: without a score on each task, and so left out of what is over all tasks."
    seeds = min(len(of) for of in scores.scores.values() if of)
    if seeds == 1:
        yield "A single run of an algorithm on a task has no interval: differences may come from the seed alone."
    elif seeds < _ENOUGH_SEEDS:
        yield f"Intervals over all tasks are too narrow with {seeds} seeds: five or more are better."
    if seeds > 1 and not can_differ(seeds, seeds):
        yield f"With {seeds} seeds, nothing on a single task can be told from chance."
