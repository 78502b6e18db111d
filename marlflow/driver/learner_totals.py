"""Counts what a learner has done: its updates, and what they said since the last report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marlflow.base.items import Update
from marlflow.base.serialization import Tree
from marlflow.observe.report import LearnerMetrics

_TOTALS = ("agent_steps_trained", "updates", "stale_rows_dropped", "updates_skipped", "staleness")


@dataclass(slots=True)
class LearnerTotals:
    """One learner's totals since the run began, and what came since the last report: how it learns."""

    agent_steps_trained: int = 0
    updates: int = 0
    stale_rows_dropped: int = 0
    updates_skipped: int = 0
    loss: Mapping[str, float] = field(default_factory=dict)
    staleness: float | None = None
    since_report: list[Update] = field(default_factory=list)

    def state(self) -> Tree:
        """All of it, as a tree."""
        return {
            **{name: getattr(self, name) for name in _TOTALS},
            "loss": dict(self.loss),
            "since_report": [_figures(update) for update in self.since_report],
        }

    def load_state(self, state: Tree) -> None:
        """Goes on from `state`."""
        for name in _TOTALS:
            setattr(self, name, state[name])
        self.loss = state["loss"]
        self.since_report = [Update(**figures) for figures in state["since_report"]]

    def updated(self, update: Update) -> None:
        """The plan reported."""
        self.agent_steps_trained += update.rows
        self.updates += update.updates
        self.stale_rows_dropped += update.stale_rows_dropped
        self.updates_skipped += update.updates_skipped
        if update.updates:
            self.since_report.append(Update(update.learner, 0, update.updates, 0, update.loss, update.staleness_mean))

    def means(self) -> tuple[Mapping[str, float], float | None]:
        """Loss and staleness over the updates since the last report; without any, what they were then."""
        if not self.since_report:
            return self.loss, self.staleness
        weights = [update.updates for update in self.since_report]
        total = sum(weights)
        shares = [(update, weight / total) for update, weight in zip(self.since_report, weights, strict=True)]
        # A term of a loss that has its turn less often is a mean over its own turns.
        terms = dict.fromkeys(name for update in self.since_report for name in update.loss)
        loss = {name: _mean([(u.loss[name], u.updates) for u in self.since_report if name in u.loss]) for name in terms}
        return loss, sum(u.staleness_mean * share for u, share in shares)

    def metrics(self, version: int, schedules: Mapping[str, float]) -> LearnerMetrics:
        """How the learner stands, with the `version` that it published last and its scheduled settings."""
        loss, staleness = self.means()
        return {
            "agent_steps_trained": self.agent_steps_trained,
            "updates": self.updates,
            "updates_skipped": self.updates_skipped,
            "version": version,
            "staleness_mean": staleness,
            "stale_rows_dropped": self.stale_rows_dropped,
            "schedules": dict(schedules),
            "loss": dict(loss),
        }

    def reported(self) -> None:
        """What comes from now on is for the next report."""
        self.loss, self.staleness = self.means()
        self.since_report.clear()


def _mean(weighted: Sequence[tuple[float, int]]) -> float:
    total = sum(weight for _, weight in weighted)
    return sum(value * (weight / total) for value, weight in weighted)


def _figures(update: Update) -> dict[str, Any]:
    """What a report is made of: without the rows that it was about."""
    kept = ("learner", "rows", "updates", "version", "staleness_mean")
    return {**{name: getattr(update, name) for name in kept}, "loss": dict(update.loss)}
