"""Observations of whole runs for tests: reports, and everything that the metrics received."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from marlflow.batches.items import Update
from marlflow.driver.episode_metrics import EvaluationContext
from marlflow.driver.learner_totals import LearnerTotals
from marlflow.driver.run_metrics import RunMetrics
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Receipt

EVALUATION_KEYS = {
    "eval_return_mean",
    "eval_return_std",
    "eval_team_return_mean",
    "eval_episode_env_steps_mean",
    "eval_episodes",
    "eval_episodes_asked",
    "eval_episodes_distinct",
    "eval_mode",
    "eval_env_steps",
    "eval_version",
    "eval_against",
    "eval_infos",
}
POLICY_KEYS = EVALUATION_KEYS | {
    "return_mean",
    "return_std",
    "team_return_mean",
    "episode_env_steps_mean",
    "episodes",
    "agent_steps_sampled",
    "version",
    "rows_carried",
    "reward_unattributed",
    "infos",
    "infos_unattributed",
}
LEARNER_KEYS = {
    "return_mean",
    "team_return_mean",
    "eval_return_mean",
    "eval_team_return_mean",
    "agent_steps_trained",
    "updates",
    "updates_skipped",
    "version",
    "staleness_mean",
    "stale_rows_dropped",
    "rows_bootstrapped_at_death",
    "compiles",
    "compile_s",
    "seats_left_early",
    "schedules",
    "loss",
}


def reports(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


class Seen:
    """All that a run told its tally: receipts of rounds, evaluations and reports of learners."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.receipts: list[Receipt] = []
        self.evaluations: list[Sequence[EpisodeResult]] = []
        self.updates: list[Update] = []
        collected, evaluated, updated = RunMetrics.collected, RunMetrics.evaluated, LearnerTotals.updated

        def see_collected(tally: RunMetrics, receipts: Sequence[Receipt]) -> None:
            self.receipts += receipts
            collected(tally, receipts)

        def see_evaluated(tally: RunMetrics, results: Evaluated, context: EvaluationContext) -> None:
            self.evaluations.append(results.episodes)
            evaluated(tally, results, context)

        def see_updated(tally: LearnerTotals, update: Update) -> None:
            self.updates.append(update)
            updated(tally, update)

        patch.setattr(RunMetrics, "collected", see_collected)
        patch.setattr(RunMetrics, "evaluated", see_evaluated)
        patch.setattr(LearnerTotals, "updated", see_updated)

    @property
    def episodes(self) -> list[EpisodeResult]:
        return [episode for receipt in self.receipts for episode in receipt.episodes]

    def of(self, policy: str) -> list[Update]:
        return [update for update in self.updates if update.learner == policy]


def standing(metrics: Any, name: str) -> Any:
    """A report's metrics of a policy and of the learner of its name, together."""
    return {**metrics["learners"].get(name, {}), **metrics["policies"][name]}
