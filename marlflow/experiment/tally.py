"""Counts what a run has done: from receipts and updates to the metrics record. Sees no rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, cast

from marlflow.base.items import Update, Weights
from marlflow.base.kept import Tree
from marlflow.observe.record import MetricsRecord, PolicyMetrics, RolloutMetrics, StageMetrics
from marlflow.policy.actor import EvaluationMode
from marlflow.rollout.fragment import EpisodeResult, Evaluated, Fault, Receipt

RETURN_WINDOW_EPISODES = 100
FAULTS = (
    "agents_vanished",
    "env_errors",
    "env_hangs",
    "workers_lost",
    "learners_lost",
    "replays_lost",
    "checkpoints_failed",
    "episodes_abandoned",
    "episodes_restarted",
    "rows_lost",
)
_LAST_EVALUATION = ("eval_return_mean", "eval_mode", "eval_episodes", "eval_env_steps", "eval_version")
_TOTALS = (
    "episodes",
    "agent_steps_sampled",
    "agent_steps_trained",
    "updates",
    "stale_rows_dropped",
    "rows_carried",
    "reward_unattributed",
    "updates_skipped",
    "staleness",
)


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """What was evaluated: how policies acted, the env steps of the run so far, and the version of each policy."""

    mode: EvaluationMode
    env_steps: int
    versions: Mapping[str, int]


@dataclass(slots=True)
class PolicyTally:
    """One policy's totals since the run began, and what came since the last report."""

    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RETURN_WINDOW_EPISODES))
    eval_return_mean: float | None = None
    eval_mode: EvaluationMode | None = None
    eval_episodes: int | None = None
    eval_env_steps: int | None = None
    eval_version: int | None = None
    episodes: int = 0
    agent_steps_sampled: int = 0
    agent_steps_trained: int = 0
    updates: int = 0
    stale_rows_dropped: int = 0
    rows_carried: int = 0
    reward_unattributed: float = 0.0
    updates_skipped: int = 0
    loss: Mapping[str, float] = field(default_factory=dict)
    staleness: float | None = None
    since_report: list[Update] = field(default_factory=list)

    @property
    def return_mean(self) -> float | None:
        """Per agent and episode, over the last 100 training episodes."""
        return fmean(self.returns) if self.returns else None

    @property
    def settled_return_mean(self) -> float | None:
        """The same, once there have been 100 episodes: a few lucky ones should end no run."""
        return self.return_mean if len(self.returns) == RETURN_WINDOW_EPISODES else None

    def state(self) -> Tree:
        """All of it, as a tree."""
        kept = {name: getattr(self, name) for name in (*_TOTALS, *_LAST_EVALUATION)}
        since = [_figures(update) for update in self.since_report]
        return {**kept, "returns": list(self.returns), "loss": dict(self.loss), "since_report": since}

    def load_state(self, state: Tree) -> None:
        """Goes on from `state`."""
        for name in _TOTALS:
            setattr(self, name, state[name])
        for name in _LAST_EVALUATION:  # checkpoints of earlier versions have the mean alone
            setattr(self, name, state.get(name))
        self.returns.extend(state["returns"])
        self.loss = state["loss"]
        self.since_report = [Update(**figures) for figures in state["since_report"]]

    def updated(self, update: Update) -> None:
        """The plan reported."""
        self.agent_steps_trained += update.rows
        self.updates += update.updates
        self.stale_rows_dropped += update.stale_rows_dropped
        self.updates_skipped += update.updates_skipped
        if update.updates:
            self.since_report.append(Update(update.policy, 0, update.updates, 0, update.loss, update.staleness_mean))

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

    def reported(self) -> None:
        """What comes from now on is for the next report."""
        self.loss, self.staleness = self.means()
        self.since_report.clear()


def _mean(weighted: Sequence[tuple[float, int]]) -> float:
    total = sum(weight for _, weight in weighted)
    return sum(value * (weight / total) for value, weight in weighted)


class Tally:
    """A run's totals."""

    def __init__(self, policies: Sequence[str], agents: Sequence[str]) -> None:
        self.policies = {name: PolicyTally() for name in policies}
        self.agents = {agent: deque[float](maxlen=RETURN_WINDOW_EPISODES) for agent in agents}
        self.env_steps = self.agent_steps = self.episodes = 0
        self.faults = dict.fromkeys(FAULTS, 0)
        self.rollouts = RolloutMetrics(env_s=0.0, policy_s=0.0, bookkeeping_s=0.0)
        self._reported = (0, 0.0)
        self._env_steps_per_s = 0.0

    def collected(self, receipts: Sequence[Receipt]) -> None:
        """The workers finished a round."""
        for receipt in receipts:
            self.env_steps += receipt.env_steps
            self.agent_steps += receipt.agent_steps
            self.faults["agents_vanished"] += receipt.agents_vanished
            self.faulted(receipt.faults)
            self.rollouts["env_s"] += receipt.env_s
            self.rollouts["policy_s"] += receipt.policy_s
            self.rollouts["bookkeeping_s"] += receipt.bookkeeping_s
            for name, made in receipt.policies.items():
                tally = self.policies[name]
                tally.agent_steps_sampled += made.rows
                tally.rows_carried += made.rows_carried
                tally.reward_unattributed += made.reward_unattributed
        ended = [episode for receipt in receipts for episode in receipt.episodes]
        for episode in sorted(ended, key=lambda episode: (episode.tick, episode.copy)):
            self._finished(episode)

    def state(self) -> Tree:
        """All of it, as a tree; nothing of it can be told apart after `load_state`."""
        return {
            "policies": {name: tally.state() for name, tally in self.policies.items()},
            "agents": {agent: list(returns) for agent, returns in self.agents.items()},
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "episodes": self.episodes,
            "faults": dict(self.faults),
            "rollouts": dict(self.rollouts),
            "reported": list(self._reported),
            "env_steps_per_s": self._env_steps_per_s,
        }

    def load_state(self, state: Tree) -> None:
        """Goes on from `state`, which was of the same policies."""
        for name, tally in self.policies.items():
            tally.load_state(state["policies"][name])
        for agent, returns in state["agents"].items():
            self.agents.setdefault(agent, deque(maxlen=RETURN_WINDOW_EPISODES)).extend(returns)
        self.env_steps, self.agent_steps = state["env_steps"], state["agent_steps"]
        self.episodes = state["episodes"]
        self.faults |= state["faults"]
        self.rollouts = cast("RolloutMetrics", dict(state["rollouts"]))
        steps, since_s = state["reported"]
        self._reported, self._env_steps_per_s = (steps, since_s), state["env_steps_per_s"]

    @property
    def agent_steps_sampled(self) -> dict[str, int]:
        """Of each policy, on which its schedules depend."""
        return {name: tally.agent_steps_sampled for name, tally in self.policies.items()}

    def faulted(self, faults: Sequence[Fault]) -> None:
        """What went wrong elsewhere than in a round or an evaluation."""
        for fault in faults:
            self.faults[fault.kind] += 1
            self.faults["rows_lost"] += fault.rows_lost

    def _finished(self, episode: EpisodeResult) -> None:
        self.episodes += 1
        for agent, total in episode.returns.items():
            self.agents.setdefault(agent, deque(maxlen=RETURN_WINDOW_EPISODES)).append(total)
        for name, mean in self._by_policy(episode).items():
            self.policies[name].returns.append(mean)
            self.policies[name].episodes += 1

    def evaluated(self, results: Evaluated, context: EvaluationContext) -> None:
        """Evaluation episodes were played; what policies that played in none of them had before stays."""
        self.faulted(results.faults)
        played: dict[str, list[float]] = {}
        for episode in results.episodes:
            for name, mean in self._by_policy(episode).items():
                played.setdefault(name, []).append(mean)
        for name, means in played.items():
            policy = self.policies[name]
            policy.eval_return_mean, policy.eval_episodes = fmean(means), len(means)
            policy.eval_mode, policy.eval_env_steps = context.mode, context.env_steps
            policy.eval_version = context.versions.get(name, 0)

    @staticmethod
    def _by_policy(episode: EpisodeResult) -> dict[str, float]:
        """For each policy that played in it, its agents' mean return."""
        returns: dict[str, list[float]] = {}
        for agent, total in episode.returns.items():
            returns.setdefault(episode.matchup[agent], []).append(total)
        return {name: fmean(totals) for name, totals in returns.items()}

    def record(
        self,
        time_s: float,
        training_s: float,
        stages: Mapping[str, Mapping[str, Any]],
        published: Mapping[str, Weights],
        object_store_bytes: int | None = None,
        schedules: Mapping[str, Mapping[str, float]] | None = None,
    ) -> MetricsRecord:
        """The record as of now; `env_steps_per_s` is since the last report that had new env steps.

        `training_s` is up to the last round, without what evaluations took. A record becomes a report by `reported`.
        """
        return {
            "time_s": time_s,
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "episodes": self.episodes,
            "env_steps_per_s": self._rate(training_s),
            "policies": {
                name: _policy(tally, published.get(name), (schedules or {}).get(name, {}))
                for name, tally in self.policies.items()
            },
            "agents": {
                agent: {"return_mean": fmean(returns) if returns else None} for agent, returns in self.agents.items()
            },
            "stages": {name: _stage(meter) for name, meter in stages.items()},
            "rollouts": self.rollouts.copy(),
            "object_store": {"bytes": object_store_bytes},
            "faults": {
                **self.faults,
                "updates_skipped": sum(tally.updates_skipped for tally in self.policies.values()),
            },
        }

    def _rate(self, training_s: float) -> float:
        steps, since_s = self._reported
        if self.env_steps == steps:  # the report at a run's end may follow one of the same round
            return self._env_steps_per_s
        return (self.env_steps - steps) / max(1e-9, training_s - since_s)

    def reported(self, training_s: float) -> None:
        """The record as of now has been reported: what comes from now on is for the next."""
        self._env_steps_per_s, self._reported = self._rate(training_s), (self.env_steps, training_s)
        for tally in self.policies.values():
            tally.reported()


def _figures(update: Update) -> dict[str, Any]:
    """What a report is made of: without the rows that it was about."""
    kept = ("policy", "rows", "updates", "version", "staleness_mean")
    return {**{name: getattr(update, name) for name in kept}, "loss": dict(update.loss)}


def _policy(tally: PolicyTally, published: Weights | None, schedules: Mapping[str, float]) -> PolicyMetrics:
    loss, staleness = tally.means()
    return {
        "return_mean": tally.return_mean,
        "eval_return_mean": tally.eval_return_mean,
        "eval_mode": tally.eval_mode,
        "eval_episodes": tally.eval_episodes,
        "eval_env_steps": tally.eval_env_steps,
        "eval_version": tally.eval_version,
        "episodes": tally.episodes,
        "agent_steps_sampled": tally.agent_steps_sampled,
        "agent_steps_trained": tally.agent_steps_trained,
        "updates": tally.updates,
        "version": published.version if published is not None else 0,
        "staleness_mean": staleness,
        "stale_rows_dropped": tally.stale_rows_dropped,
        "rows_carried": tally.rows_carried,
        "reward_unattributed": tally.reward_unattributed,
        "schedules": dict(schedules),
        "loss": dict(loss),
    }


def _stage(meter: Mapping[str, Any]) -> StageMetrics:
    return {
        "items": meter["items"],
        "rows": meter["rows"],
        "dropped": meter["dropped"],
        "rows_dropped": meter["rows_dropped"],
        "busy_s": meter["busy_s"],
        "starved_s": meter["starved_s"],
        "blocked_s": meter["blocked_s"],
    }
