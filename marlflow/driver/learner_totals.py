"""Totals of a learner's updates, its mean losses since the last report, and the returns of all its policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marlflow.base.serialization import Tree
from marlflow.batches.items import Update
from marlflow.driver.episode_metrics import EpisodeWindow, fmean, mean, totals_of_policies
from marlflow.observe.report import LearnerMetrics
from marlflow.sampling.receipts import EpisodeResult

_TOTALS = (
    "agent_steps_trained",
    "updates",
    "stale_rows_dropped",
    "rows_bootstrapped_at_death",
    "seats_left_early",
    "updates_skipped",
    "compiles",
    "compile_s",
    "staleness",
)


@dataclass(slots=True)
class LearnerTotals:
    """Totals of one learner, and its updates since the last report; `members` are its policies."""

    members: Collection[str] = ()
    agent_steps_trained: int = 0
    updates: int = 0
    stale_rows_dropped: int = 0
    rows_bootstrapped_at_death: int = 0
    seats_left_early: int = 0
    updates_skipped: int = 0
    compiles: int = 0
    compile_s: float = 0.0
    loss: Mapping[str, float] = field(default_factory=dict)
    staleness: float | None = None
    since_report: list[Update] = field(default_factory=list)
    has_staleness: bool = True
    """Whether rows have versions of its own policies; versions of other policies say nothing about staleness."""
    played: EpisodeWindow = field(default_factory=EpisodeWindow)
    evaluation: tuple[float, float] | None = None
    """Mean return per agent, and of the sum over agents, in the last evaluation."""
    evaluation_is_new: bool = False

    def state(self) -> Tree:
        """Return the complete state."""
        return {
            **{name: getattr(self, name) for name in _TOTALS},
            "loss": dict(self.loss),
            "since_report": [_serializable(update) for update in self.since_report],
            "played": self.played.state(),
            "evaluation": None if self.evaluation is None else list(self.evaluation),
            "evaluation_is_new": self.evaluation_is_new,
        }

    def load_state(self, state: Tree) -> None:
        """Restore `state`."""
        for name in _TOTALS:
            setattr(self, name, state[name])
        self.loss = state["loss"]
        self.since_report = [Update(**fields) for fields in state["since_report"]]
        self.played.load_state(state["played"])
        self.evaluation = None if state["evaluation"] is None else tuple(state["evaluation"])
        self.evaluation_is_new = state["evaluation_is_new"]

    def finished(self, episode: EpisodeResult) -> None:
        """Add a training episode to the window."""
        if (totals := totals_of_policies(episode, self.members)) is not None:
            self.played.add(totals)

    def evaluated(self, episodes: Sequence[EpisodeResult]) -> None:
        """Store an evaluation of all policies together."""
        played = [totals for episode in episodes if (totals := totals_of_policies(episode, self.members)) is not None]
        if played:
            self.evaluation = fmean(one.return_mean for one in played), fmean(one.team_return for one in played)
            self.evaluation_is_new = True

    def updated(self, update: Update) -> None:
        """Count an update."""
        self.agent_steps_trained += update.rows
        self.updates += update.updates
        self.stale_rows_dropped += update.stale_rows_dropped
        self.rows_bootstrapped_at_death += update.rows_bootstrapped_at_death
        self.updates_skipped += update.updates_skipped
        self.compiles += update.compiles
        self.compile_s += update.compile_s
        if update.updates:
            kept = Update(update.learner, update.rows, update.updates, 0, update.loss, update.staleness_mean)
            self.since_report.append(kept)

    def means(self) -> tuple[Mapping[str, float], float | None]:
        """Return mean loss and staleness since the last report, or the reported ones without updates."""
        if not self.since_report:
            return self.loss, self.staleness
        # A loss term that some updates lack, such as the actor's in TD3, is averaged over the others.
        terms = dict.fromkeys(name for update in self.since_report for name in update.loss)
        loss = {name: _mean([(u.loss[name], u.updates) for u in self.since_report if name in u.loss]) for name in terms}
        staleness = _mean([(u.staleness_mean, u.rows or u.updates) for u in self.since_report])
        return loss, staleness if self.has_staleness else None

    def metrics(self, version: int) -> LearnerMetrics:
        """Return the learner's report, without the values of its schedules."""
        loss, staleness = self.means()
        evaluated = self.evaluation or (None, None)
        return {
            "return_mean": mean(self.played.returns),
            "team_return_mean": mean(self.played.team_returns),
            "eval_return_mean": evaluated[0],
            "eval_team_return_mean": evaluated[1],
            "agent_steps_trained": self.agent_steps_trained,
            "updates": self.updates,
            "updates_skipped": self.updates_skipped,
            "compiles": self.compiles,
            "compile_s": self.compile_s,
            "version": version,
            "staleness_mean": staleness,
            "stale_rows_dropped": self.stale_rows_dropped,
            "rows_bootstrapped_at_death": self.rows_bootstrapped_at_death,
            "seats_left_early": self.seats_left_early,
            "schedules": {},
            "loss": dict(loss),
        }

    def reported(self) -> None:
        """Start a new period after a report."""
        self.loss, self.staleness = self.means()
        self.since_report.clear()
        self.evaluation_is_new = False


def _mean(weighted: Sequence[tuple[float, int]]) -> float:
    total = sum(count for _, count in weighted)
    return sum(value * (count / total) for value, count in weighted)


def _serializable(update: Update) -> dict[str, Any]:
    names = ("learner", "rows", "updates", "version", "staleness_mean")
    return {**{name: getattr(update, name) for name in names}, "loss": dict(update.loss)}
