"""The metrics record: one object per report, written to `metrics.jsonl` and shown on the console.

Counts are totals since the run began, over resumes; a rate is the difference of two records. `None` stands for what
is not known yet (no episode has ended, the policy does not learn), and for evaluations that are no news.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict


class EvaluationMetrics(TypedDict):
    """What the last evaluation says of one policy; in a report, None if an earlier report has said so already."""

    eval_return_mean: float | None  # per agent and episode, over the episodes of the evaluation
    eval_return_std: float | None  # the population's standard deviation over these episodes
    eval_team_return_mean: float | None  # per episode: the sum over the policy's agents
    eval_episode_env_steps_mean: float | None
    eval_episodes: int | None  # in which the policy was evaluated
    eval_episodes_distinct: int | None  # those of them that differ in anything that was seen, done or received
    eval_mode: str | None  # how the policies acted: greedy or sampled
    eval_env_steps: int | None  # env steps of the run at which the evaluation was made
    eval_version: int | None  # the policy's version that was evaluated
    eval_against: Mapping[str, float]  # eval_return_mean against each of evaluation.opponents


class PolicyMetrics(EvaluationMetrics):
    """How one policy stands."""

    return_mean: float | None  # per agent and episode, over the last 100 training episodes, exploration included
    return_std: float | None  # over these episodes, as eval_return_std
    team_return_mean: float | None  # per episode: the sum over the policy's agents, over the same episodes
    episode_env_steps_mean: float | None  # over the same episodes
    episodes: int
    agent_steps_sampled: int
    version: int
    rows_carried: int  # rows
    reward_unattributed: float


class LearnerMetrics(TypedDict):
    """How one learner stands."""

    agent_steps_trained: int  # a row counts as often as it was trained on
    updates: int  # optimiser steps
    updates_skipped: int  # optimiser steps that were not taken: their gradient was not finite
    version: int  # of the weights of all its policies
    staleness_mean: float | None  # versions
    stale_rows_dropped: int  # rows
    schedules: Mapping[str, float]  # each scheduled setting, as of what its policies have sampled
    loss: Mapping[str, float]


class AgentMetrics(TypedDict):
    """How one agent fares."""

    return_mean: float | None


class StageMetrics(TypedDict):
    """What one stage has done, and where its time went."""

    items: int
    rows: int
    dropped: int  # items: by a full queue, behind a plan that has ended, or with a process that died
    rows_dropped: int  # agent steps of those that a queue dropped
    busy_s: float
    starved_s: float  # waiting for input
    blocked_s: float  # waiting for room


class RolloutMetrics(TypedDict):
    """Where the time of all rollout workers went, evaluation apart."""

    env_s: float  # in environments
    policy_s: float  # in what chooses actions
    bookkeeping_s: float  # the rest: recording rows


class ObjectStoreMetrics(TypedDict):
    """What rows and weights take on their way between processes."""

    bytes: int | None  # on all machines; None where nothing leaves the process


class MetricsRecord(TypedDict):
    """One report. Keys that end in `_s` are times, and alone may differ between identical inline runs."""

    time_s: float
    env_steps: int
    agent_steps: int
    episodes: int
    episode_env_steps_mean: float | None  # over the last 100 training episodes
    team_return_mean: float | None  # per episode: the sum over all agents, over the last 100 training episodes
    eval_team_return_mean: float | None  # the same over the last evaluation, in which all policies play together
    env_steps_per_s: float
    policies: Mapping[str, PolicyMetrics]
    learners: Mapping[str, LearnerMetrics]
    agents: Mapping[str, AgentMetrics]
    stages: Mapping[str, StageMetrics]  # by "plan/stage"
    rollouts: RolloutMetrics
    object_store: ObjectStoreMetrics
    faults: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """What does not change about a policy: its algorithm's name, the agents that it plays, and its learner, if any."""

    algorithm: str
    agents: tuple[str, ...]
    learner: str | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What does not change about a run.

    `stop` holds the conditions of which any ends the run, by the names of the configuration: `env_steps`, `time_s`
    (seconds), `policies.<id>.return_mean`.
    """

    name: str
    run_dir: Path
    policies: Mapping[str, PolicyInfo]
    runtime: str
    stop: Mapping[str, float] = field(default_factory=dict)
