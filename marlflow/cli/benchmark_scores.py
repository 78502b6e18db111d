"""The scores of a benchmark's runs: kept in scores.csv, and reported."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import replacing
from marlflow.cli.benchmark_runs import BenchmarkPlan, BenchmarkRun
from marlflow.html_report.suite_report import SuiteScores

SCORES = "scores.csv"


@dataclass(frozen=True, slots=True)
class RunScore:
    """A row of scores.csv; `scored` says as JSON what else the score depends on."""

    task: str
    algorithm: str
    seed: int
    env_steps: int
    episodes: int
    score: float
    normalized: float
    scored: str


class BenchmarkScores:
    """The scores of the runs of a plan, and of all other runs in its folder, as scores.csv keeps them."""

    def __init__(self, plan: BenchmarkPlan, runs: Sequence[BenchmarkRun], episodes: int) -> None:
        self._plan, self._runs, self._episodes = plan, runs, episodes
        self._path = plan.folder / SCORES
        self._all = {(one.task, one.algorithm, one.seed): one for one in _read_scores(self._path)}
        for run in runs:
            known = self._all.get((run.task, run.algorithm, run.seed))
            if known is None:
                continue
            # The limits of the task may be others than before.
            row = self._row(run, known.score)
            if run.state == "complete" and replace(known, normalized=row.normalized) == row:
                self._all[run.task, run.algorithm, run.seed] = row
            else:
                del self._all[run.task, run.algorithm, run.seed]

    def __contains__(self, run: BenchmarkRun) -> bool:
        return (run.task, run.algorithm, run.seed) in self._all

    def _row(self, run: BenchmarkRun, score: float) -> RunScore:
        suite = self._plan.suite
        scored = json.dumps({"policies": suite.policies, "env": suite.tasks[run.task].score_env}, sort_keys=True)
        normalized = suite.tasks[run.task].normalized(score)
        return RunScore(run.task, run.algorithm, run.seed, run.env_steps, self._episodes, score, normalized, scored)

    def add(self, run: BenchmarkRun, score: float) -> None:
        """Keep the score of a run, and write scores.csv."""
        self._all[run.task, run.algorithm, run.seed] = self._row(run, score)
        self.write()

    def write(self) -> None:
        """Write scores.csv."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(RunScore)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self._all.values())
        with replacing(self._path) as aside:
            aside.write_text(text.getvalue(), encoding="utf-8")

    def suite_scores(self) -> SuiteScores:
        """Return the scores of the runs of the plan, for a report."""
        plan, suite = self._plan, self._plan.suite
        env_steps = {(run.task, run.algorithm): run.env_steps for run in self._runs}
        scores: dict[tuple[str, str], list[float]] = {pair: [] for pair in env_steps}
        for run in self._runs:
            if run in self:
                scores[run.task, run.algorithm].append(self._all[run.task, run.algorithm, run.seed].score)
        changed = {task: suite.tasks[task].score_env for task in plan.tasks}
        about = [
            f"A score is the mean over {self._episodes:,} episodes of the final policies, acting as their algorithms "
            f"learn to, of the sum of the returns of all agents of {', '.join(suite.policies)}.",
            *(f"{task} was scored with {_settings(env)}." for task, env in changed.items() if env),
        ]
        limits = {task: (suite.tasks[task].low, suite.tasks[task].high) for task in plan.tasks}
        missing = [run.name for run in self._runs if run not in self]
        return SuiteScores(suite.name, limits, plan.algorithms, scores, env_steps, about, plan.budget, missing)


def _settings(env: Mapping[str, Any]) -> str:
    return ", ".join(f"env.{name}={json.dumps(value)}" for name, value in env.items())


def _read_scores(path: Path) -> list[RunScore]:
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                RunScore(
                    row["task"],
                    row["algorithm"],
                    int(row["seed"]),
                    int(row["env_steps"]),
                    int(row["episodes"]),
                    float(row["score"]),
                    float(row["normalized"]),
                    row["scored"],
                )
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ConfigInvalid([f"{path} cannot be read: {error}; remove it, and runs are scored again"]) from error
