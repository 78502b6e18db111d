"""The metrics report: one object per report, written to `metrics.jsonl` and shown on the console.

Counts are totals since the run began, over resumes. None means not known yet, or for evaluations, nothing new.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict


class EvaluationMetrics(TypedDict):
    """One policy's last evaluation; all None if an earlier report contained it."""

    eval_return_mean: float | None  # per agent and episode, over the episodes of the evaluation
    eval_return_std: float | None  # the population's standard deviation over these episodes
    eval_team_return_mean: float | None  # per episode: the sum over the policy's agents
    eval_episode_env_steps_mean: float | None
    eval_episodes: int | None  # episodes of the evaluation that the policy played
    eval_episodes_asked: int | None  # episodes that the settings ask for: more if some were left out or broke
    eval_episodes_distinct: int | None  # the number of these that differ in any observation, action or reward
    eval_mode: str | None  # how the policy acted: sampled if it drew random numbers, else greedy
    eval_env_steps: int | None  # env steps of the run at which the evaluation was made
    eval_version: int | None  # the policy's version that was evaluated
    eval_against: Mapping[str, float]  # eval_return_mean against each of evaluation.opponents
    eval_infos: Mapping[str, float]  # by info column: mean per agent and episode, as eval_return_mean


class PolicyMetrics(EvaluationMetrics):
    """Metrics of one policy."""

    return_mean: float | None  # per agent and episode, over the last 100 training episodes, exploration included
    return_std: float | None  # over these episodes, as eval_return_std
    team_return_mean: float | None  # per episode: the sum over the policy's agents, over the same episodes
    episode_env_steps_mean: float | None  # over the same episodes
    episodes: int
    agent_steps_sampled: int
    version: int
    rows_carried: int  # rows
    reward_unattributed: float
    infos: Mapping[str, float]  # by info column: mean per agent and episode, over the last 100 that have it
    infos_unattributed: Mapping[str, float]  # by credited info column: what belongs to no row


class LearnerMetrics(TypedDict):
    """Metrics of a learner."""

    return_mean: float | None  # per agent of all its policies and episode, over the last 100 training episodes
    team_return_mean: float | None  # per episode: the sum over the agents of all its policies, over these episodes
    eval_return_mean: float | None  # as return_mean, over the last evaluation; None with evaluation.opponents
    eval_team_return_mean: float | None  # as team_return_mean, over the last evaluation
    agent_steps_trained: int  # a row counts as often as it was trained on
    updates: int  # optimizer steps
    updates_skipped: int  # optimizer steps that were not taken: their gradient was not finite
    compiles: int  # of its updates, by XLA
    compile_s: float  # seconds of the updates that compiled
    version: int  # of the weights of all its policies
    staleness_mean: float | None  # versions
    stale_rows_dropped: int  # rows
    rows_bootstrapped_at_death: int  # rows; algorithm.bootstrap_at_death
    seats_left_early: int  # agents; learners from a replay of joint rows
    schedules: Mapping[str, float]  # by setting, as of its policies' agent_steps_sampled
    loss: Mapping[str, float]


class AgentMetrics(TypedDict):
    """Metrics of one agent."""

    return_mean: float | None


class StageMetrics(TypedDict):
    """Work and time of one stage."""

    items: int
    rows: int
    dropped: int  # items: by a full queue, after a plan has ended, or with a lost process
    rows_dropped: int  # agent steps in the items that queues dropped
    busy_s: float
    starved_s: float  # waiting for input
    blocked_s: float  # waiting for room
    waiting: NotRequired[int]  # items, in queues and branches of forks only


class RolloutMetrics(TypedDict):
    """Time spent by all rollout workers, and actions replaced there, without evaluation."""

    env_s: float  # in environments
    policy_s: float  # in policies
    bookkeeping_s: float  # the rest: recording rows
    actions_corrected: int  # by shields
    compiles: int  # of the calls of compiled rollouts
    compile_s: float


NO_ROLLOUTS = RolloutMetrics(env_s=0.0, policy_s=0.0, bookkeeping_s=0.0, actions_corrected=0, compiles=0, compile_s=0.0)


class ObjectStoreMetrics(TypedDict):
    """Memory of rows and weights in transit between processes."""

    bytes: int | None  # on all machines; None if the run is one process


class LeaguePlayerMetrics(TypedDict):
    """A learning policy in a league."""

    snapshots: int
    resets: int  # how often it began again
    incarnation: int  # the number of its present incarnation, from 0
    games: int  # training games that it played in any role
    win_rate_mean: float | None  # probability to win, mean over its opponents; draws are half a win
    win_rate_min: float | None  # against the opponent that it beats least
    opponents_distinct: int
    rating_mu: float  # from matches; 25 before any
    rating_sigma: float


class LeagueReport(TypedDict):
    """State of a league."""

    members: int  # live policies, their snapshots, and fixed policies
    epoch: int  # how often the population changed
    games: int  # training games counted
    games_stale: int  # results that came twice or too late
    games_lost: int  # games that began and had no result
    matches: int  # evaluation games between members counted
    members_sent: int  # snapshots that a worker's process was sent; 0 if the run is one process
    bytes_sent: int  # of their parameters; workers on one machine read the same copy
    cache_hits: int  # snapshots in a call's matchups that the worker's process had
    deal_s: float  # dealing games
    score_s: float  # counting results
    match_s: float  # playing matches, for which rounds wait
    solve_s: float  # choosing matches, and computing meta-strategies
    nash_conv_s: float  # computing NashConv
    nash_conv: float | None  # the last one of the league's solution
    nash_conv_env_steps: int | None  # env steps of the run at which it was computed
    players: Mapping[str, LeaguePlayerMetrics]
    meta: Mapping[str, Mapping[str, float]]  # the mode's solution: by role, the probability of each member


class Report(TypedDict):
    """One report. Only times, whose keys end in `_s`, may differ between identical inline runs."""

    time_s: float
    env_steps: int
    agent_steps: int
    episodes: int
    episode_env_steps_mean: float | None  # over the last 100 training episodes
    team_return_mean: float | None  # per episode: the sum over all agents, over the last 100 training episodes
    eval_team_return_mean: float | None  # over the last evaluation, in which all policies play together
    env_steps_per_s: float
    policies: Mapping[str, PolicyMetrics]
    learners: Mapping[str, LearnerMetrics]
    agents: Mapping[str, AgentMetrics]
    stages: Mapping[str, StageMetrics]  # by "plan/stage"
    rollouts: RolloutMetrics
    object_store: ObjectStoreMetrics
    faults: Mapping[str, int]
    league: NotRequired[LeagueReport]  # if there is one
    callbacks: NotRequired[Mapping[str, Mapping[str, float | None]]]  # by callback that has any: Callback.metrics


@dataclass(frozen=True, slots=True)
class ChangeableSetting:
    """A setting of a learner that may change between rounds: its `value` in the configuration, and its range."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy's algorithm, agents and, if it learns, learner, with the `settings` that a callback may change."""

    algorithm: str
    agents: tuple[str, ...]
    learner: str | None = None
    settings: Mapping[str, ChangeableSetting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoint that a run was resumed from: its env steps, and the number of reports before it."""

    env_steps: int
    reports: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run's constant properties.

    `stop` has the stop conditions by configuration key: `env_steps`, `time_s`, `policies.<id>.return_mean`. `id` is the
    same after each resume, and `resumed` None before the first. `configuration` is as in `experiment.json`.
    """

    name: str
    run_dir: Path
    policies: Mapping[str, PolicyInfo]
    runtime: str
    stop: Mapping[str, float] = field(default_factory=dict)
    id: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    resumed: ResumePoint | None = None


def metric(report: Mapping[str, Any], path: str) -> float | None:
    """Return the metric at a dotted path, such as `policies.prey.return_mean`.

    None if it is one of infos or of a callback that did not give it yet. Raises KeyError if there is no such metric.
    """
    section, _, rest = path.partition(".")
    if section == "callbacks":
        name, _, number = rest.rpartition(".")
        return report.get(section, {}).get(name, {}).get(number)  # type: ignore[no-any-return]
    value: Any = report
    parts = path.split(".")
    if section in ("policies", "learners"):
        owner = owner_in(rest, value[section])
        parts = [section, owner, *rest[len(owner) + 1 :].split(".")]
    before = ""
    for part in parts:
        value = value.get(part) if before in INFOS else value[part]
        before = part
    return value  # type: ignore[no-any-return]


def is_of_evaluation(path: str) -> bool:
    """Return whether the metric at a path changes only with evaluations.

    >>> is_of_evaluation("policies.prey.eval_infos.metrics.won"), is_of_evaluation("policies.eval_1.return_mean")
    (True, False)
    """
    return re.search(r"(^|\.)eval_(return|team_return|episode)\w*$|\.eval_(infos|against)\.", path) is not None


def owner_in(path: str, names: Iterable[str]) -> str:
    """Return which of `names`, which may have dots, a dotted path begins with; its first part if with none.

    >>> owner_in("red.2.return_mean", ["red", "red.2"])
    'red.2'
    """
    return max((name for name in names if path.startswith(f"{name}.")), key=len, default=path.partition(".")[0])


INFOS = ("infos", "eval_infos")
"""Fields of a policy whose names only the run knows."""
