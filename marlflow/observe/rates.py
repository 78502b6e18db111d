"""Compute what consoles show from reports: rates and time shares between two, progress to the end, table rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from marlflow.observe.report import (
    NO_ROLLOUTS,
    EvaluationMetrics,
    LearnerMetrics,
    PolicyInfo,
    PolicyMetrics,
    Report,
    StageMetrics,
)

_RETURN_TARGET = re.compile(r"policies\.(.+)\.return_mean")
# Totals before the first report.
_NOTHING = StageMetrics(items=0, rows=0, dropped=0, rows_dropped=0, busy_s=0.0, starved_s=0.0, blocked_s=0.0)


@dataclass(frozen=True, slots=True)
class StageShares:
    """Shares of the time that a stage was metered between two reports: they sum to 1, or all are 0 if it was not.

    A call in another process is metered when it ends, and overlapping calls all count, so this time differs from the
    time between the reports.
    """

    busy: float
    starved: float
    blocked: float

    @property
    def percents(self) -> tuple[int, int, int]:
        """The shares in whole percent, which sum to 100, or to 0."""
        # Rounding the running total, not each share.
        ends = [
            round(100 * end) for end in (self.busy, self.busy + self.starved, self.busy + self.starved + self.blocked)
        ]
        return ends[0], ends[1] - ends[0], ends[2] - ends[1]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the run: `fraction` in [0, 1], and estimated seconds left if known."""

    fraction: float
    left_s: float | None


def with_last_evaluations(before: Report | None, now: Report) -> Report:
    """Fill in the evaluations that `now` lacks, because a report contains only new ones."""
    if before is None:
        return now
    policies = {
        policy: _evaluated_last(before["policies"].get(policy), metrics) for policy, metrics in now["policies"].items()
    }
    learners = {name: _with_last_means(before["learners"].get(name), one) for name, one in now["learners"].items()}
    return {**now, "policies": policies, "learners": learners}


def _with_last_means(before: LearnerMetrics | None, now: LearnerMetrics) -> LearnerMetrics:
    if before is None or now["eval_return_mean"] is not None:
        return now
    last = {key: value for key, value in before.items() if key.startswith("eval_")}
    return cast("LearnerMetrics", {**now, **last})


def _evaluated_last(before: PolicyMetrics | None, now: PolicyMetrics) -> PolicyMetrics:
    if before is None or now["eval_episodes"] is not None:
        return now
    last = {key: value for key, value in before.items() if key in EvaluationMetrics.__annotations__}
    return cast("PolicyMetrics", {**now, **last})


def elapsed_s(before: Report | None, now: Report) -> float:
    """Return seconds between two reports, or since the run began."""
    return now["time_s"] - (before["time_s"] if before else 0.0)


def updates_per_s(before: Report | None, now: Report) -> dict[str, float | None]:
    """Return each learner's optimizer steps per second; None if no time has passed."""
    seconds = elapsed_s(before, now)
    earlier = before["learners"] if before else {}
    rates: dict[str, float | None] = {}
    for learner, metrics in now["learners"].items():
        done = metrics["updates"] - (earlier[learner]["updates"] if learner in earlier else 0)
        rates[learner] = done / seconds if seconds > 0 else None
    return rates


def stage_shares(before: Report | None, now: Report) -> dict[str, StageShares]:
    """Return each stage's time shares."""
    earlier = before["stages"] if before else {}
    return {stage: _shares(earlier.get(stage, _NOTHING), metrics) for stage, metrics in now["stages"].items()}


def rollout_shares(before: Report | None, now: Report) -> dict[str, float]:
    """Return the rollout workers' time shares by activity; empty without workers."""
    earlier = before["rollouts"] if before else NO_ROLLOUTS
    spent = {
        "environments": now["rollouts"]["env_s"] - earlier["env_s"],
        "policies": now["rollouts"]["policy_s"] - earlier["policy_s"],
        "bookkeeping": now["rollouts"]["bookkeeping_s"] - earlier["bookkeeping_s"],
    }
    total = sum(spent.values())
    return {activity: seconds / total for activity, seconds in spent.items()} if total > 0 else {}


def _shares(before: StageMetrics, now: StageMetrics) -> StageShares:
    busy_s, starved_s, blocked_s = (
        max(0.0, after - earlier)
        for after, earlier in (
            (now["busy_s"], before["busy_s"]),
            (now["starved_s"], before["starved_s"]),
            (now["blocked_s"], before["blocked_s"]),
        )
    )
    metered_s = busy_s + starved_s + blocked_s
    if metered_s <= 0:
        return StageShares(0.0, 0.0, 0.0)
    return StageShares(busy_s / metered_s, starved_s / metered_s, blocked_s / metered_s)


def progress(record: Report, stop: Mapping[str, float]) -> Progress | None:
    """Return the progress toward the nearest limit on env steps or time; None without limits."""
    candidates = []
    if stop.get("env_steps"):
        left, speed = stop["env_steps"] - record["env_steps"], record["env_steps_per_s"]
        candidates.append(
            Progress(_fraction(record["env_steps"], stop["env_steps"]), max(left, 0) / speed if speed > 0 else None)
        )
    if stop.get("time_s"):
        left_s = max(stop["time_s"] - record["time_s"], 0.0)
        candidates.append(Progress(_fraction(record["time_s"], stop["time_s"]), left_s))
    # An unknown remaining time sorts last.
    return min(candidates, key=lambda one: float("inf") if one.left_s is None else one.left_s, default=None)


def return_targets(stop: Mapping[str, float]) -> dict[str, float]:
    """Return the mean return at which the run ends, by policy."""
    matches = ((_RETURN_TARGET.fullmatch(condition), value) for condition, value in stop.items())
    return {match[1]: value for match, value in matches if match}


def _fraction(done: float, goal: float) -> float:
    return min(max(done / goal, 0.0), 1.0)


_INDENT = "  "
# For a policy that the run's info does not list.
_UNLISTED = PolicyInfo(algorithm="-", agents=())
_NOT_LEARNING = LearnerMetrics(
    return_mean=None,
    team_return_mean=None,
    eval_return_mean=None,
    eval_team_return_mean=None,
    agent_steps_trained=0,
    updates=0,
    updates_skipped=0,
    compiles=0,
    compile_s=0.0,
    version=0,
    staleness_mean=None,
    stale_rows_dropped=0,
    rows_bootstrapped_at_death=0,
    seats_left_early=0,
    schedules={},
    loss={},
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A policy, or a learner of several policies; `plan` is the name of its plan, and of its learner.

    `learned` is None for a policy below its learner's row.
    """

    label: str
    plan: str
    about: PolicyInfo
    metrics: PolicyMetrics
    learned: LearnerMetrics | None


def table_rows(policies: Mapping[str, PolicyInfo], report: Report) -> list[TableRow]:
    """Return the rows of a report, policies in their order and each learner of several where its first one is."""
    learner_of = {name: policies.get(name, _UNLISTED).learner or name for name in report["policies"]}
    members: dict[str, list[str]] = {}
    for name, learner in learner_of.items():
        members.setdefault(learner, []).append(name)
    return [row for learner, names in members.items() for row in _rows_of(learner, names, policies, report)]


def _rows_of(
    learner: str, members: list[str], policies: Mapping[str, PolicyInfo], report: Report
) -> Iterator[TableRow]:
    learned, infos = report["learners"].get(learner), [policies.get(name, _UNLISTED) for name in members]
    is_team = len(members) > 1 and learned is not None
    if is_team:
        agents = tuple(agent for info in infos for agent in info.agents)
        about = PolicyInfo(infos[0].algorithm, agents, learner)
        metrics = _team_metrics([report["policies"][name] for name in members], cast("LearnerMetrics", learned))
        yield TableRow(learner, learner, about, metrics, learned)
    for name, about in zip(members, infos, strict=True):
        shown = None if is_team else learned or _NOT_LEARNING
        yield TableRow(f"{_INDENT if is_team else ''}{name}", learner, about, report["policies"][name], shown)


def _team_metrics(members: list[PolicyMetrics], learned: LearnerMetrics) -> PolicyMetrics:
    """Return the metrics of all members together; deviations are None."""
    longest = max(members, key=lambda one: one["episode_env_steps_mean"] or 0.0)
    evaluated = next((one for one in members if one["eval_episodes"] is not None), members[0])
    together: dict[str, Any] = {
        "return_mean": learned["return_mean"],
        "return_std": None,
        "team_return_mean": learned["team_return_mean"],
        "episode_env_steps_mean": longest["episode_env_steps_mean"],
        "eval_return_mean": learned["eval_return_mean"],
        "eval_return_std": None,
        "eval_team_return_mean": learned["eval_team_return_mean"],
        "episodes": max(one["episodes"] for one in members),
        "agent_steps_sampled": sum(one["agent_steps_sampled"] for one in members),
        "version": learned["version"],
        "rows_carried": sum(one["rows_carried"] for one in members),
        "reward_unattributed": sum(one["reward_unattributed"] for one in members),
        # Each member's row shows its own.
        "infos": {},
        "eval_infos": {},
    }
    return cast("PolicyMetrics", {**evaluated, **together})
