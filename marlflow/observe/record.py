"""The metrics record: one object per report, written to `metrics.jsonl` and shown on the console.

Counts are totals since the run began, over resumes; a rate is the difference of two records. `None` stands for what
is not known yet (no episode has ended, nothing has been evaluated, the policy does not learn).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict


class PolicyMetrics(TypedDict):
    """How one policy stands."""

    return_mean: float | None  # per agent and episode, over the last 100 training episodes, exploration included
    eval_return_mean: float | None  # the same over the episodes of the last evaluation
    eval_mode: str | None  # how the policies acted in it: greedy or sampled
    eval_episodes: int | None  # its episodes in which the policy played
    eval_env_steps: int | None  # env steps of the run at which it was made
    eval_version: int | None  # the policy's version that it was made with
    episodes: int
    agent_steps_sampled: int
    agent_steps_trained: int  # a row counts as often as it was trained on
    updates: int  # optimiser steps
    version: int
    staleness_mean: float | None  # versions
    stale_rows_dropped: int  # rows
    rows_carried: int  # rows
    reward_unattributed: float
    schedules: Mapping[str, float]  # each scheduled setting, as of agent_steps_sampled
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
    env_steps_per_s: float
    policies: Mapping[str, PolicyMetrics]
    agents: Mapping[str, AgentMetrics]
    stages: Mapping[str, StageMetrics]  # by "plan/stage"
    rollouts: RolloutMetrics
    object_store: ObjectStoreMetrics
    faults: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """What does not change about a policy: its algorithm's name and the agents that it plays."""

    algorithm: str
    agents: tuple[str, ...]


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
