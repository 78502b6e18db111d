"""The rows of a console's table: policies, and learners of several policies with these below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from marlflow.observe.report import LearnerMetrics, PolicyInfo, PolicyMetrics, Report

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
