"""Counts what a run has done: from receipts and updates to the metrics record. Sees no rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from marlflow.base.fault_kind import FaultKind
from marlflow.base.items import Weights
from marlflow.base.serialization import Tree
from marlflow.driver.episode_metrics import (
    WINDOW_EPISODES,
    EpisodeWindow,
    EvaluationContext,
    PolicyEvaluation,
    evaluation_metrics,
    mean,
    part_of_all,
    parts_by_policy,
    policies_evaluated,
    spread,
)
from marlflow.driver.learner_totals import LearnerTotals
from marlflow.observe.report import PolicyMetrics, Report, RolloutMetrics, StageMetrics
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Fault, Receipt

FAULTS = (
    "agents_vanished",
    *(kind.value for kind in FaultKind if kind is not FaultKind.UPDATES_SKIPPED),  # which are summed over policies
    "episodes_abandoned",
    "episodes_restarted",
    "rows_lost",
)
_POLICY_TOTALS = ("episodes", "agent_steps_sampled", "rows_carried", "reward_unattributed")


@dataclass(slots=True)
class PolicyTotals:
    """One policy's totals since the run began: how it plays."""

    played: EpisodeWindow = field(default_factory=EpisodeWindow)
    evaluation: PolicyEvaluation | None = None
    evaluation_is_new: bool = False
    episodes: int = 0
    agent_steps_sampled: int = 0
    rows_carried: int = 0
    reward_unattributed: float = 0.0

    @property
    def return_mean(self) -> float | None:
        """Per agent and episode, over the last 100 training episodes."""
        return mean(self.played.returns)

    @property
    def settled_return_mean(self) -> float | None:
        """The same, once there have been 100 episodes: a few lucky ones should end no run."""
        return self.return_mean if self.played.is_full else None

    def state(self) -> Tree:
        """All of it, as a tree."""
        return {
            **{name: getattr(self, name) for name in _POLICY_TOTALS},
            "played": self.played.state(),
            "evaluation": None if self.evaluation is None else self.evaluation.state(),
            "evaluation_is_new": self.evaluation_is_new,
        }

    def load_state(self, state: Tree) -> None:
        """Goes on from `state`."""
        for name in _POLICY_TOTALS:
            setattr(self, name, state[name])
        self.played.load_state(state["played"])
        self.evaluation = None if state["evaluation"] is None else PolicyEvaluation(**state["evaluation"])
        self.evaluation_is_new = state["evaluation_is_new"]


class RunMetrics:
    """A run's totals; `learners` has the policies of each learner."""

    def __init__(self, policies: Sequence[str], learners: Mapping[str, Sequence[str]], agents: Sequence[str]) -> None:
        self.policies = {name: PolicyTotals() for name in policies}
        self.learners = {name: LearnerTotals() for name in learners}
        self._members = learners
        self.agents = {agent: deque[float](maxlen=WINDOW_EPISODES) for agent in agents}
        self.played = EpisodeWindow()
        self.eval_team_return_mean: float | None = None
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
        for episode in sorted(ended, key=lambda episode: (episode.tick, episode.env)):
            self._finished(episode)

    def state(self) -> Tree:
        """All of it, as a tree; nothing of it can be told apart after `load_state`."""
        return {
            "policies": {name: tally.state() for name, tally in self.policies.items()},
            "learners": {name: tally.state() for name, tally in self.learners.items()},
            "agents": {agent: list(returns) for agent, returns in self.agents.items()},
            "played": self.played.state(),
            "eval_team_return_mean": self.eval_team_return_mean,
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
        for learner, learned in self.learners.items():
            learned.load_state(state["learners"][learner])
        for agent, returns in state["agents"].items():
            self.agents.setdefault(agent, deque(maxlen=WINDOW_EPISODES)).extend(returns)
        self.played.load_state(state["played"])
        self.eval_team_return_mean = state["eval_team_return_mean"]
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

    def agent_steps_sampled_for(self, learner: str) -> int:
        """Agent steps that the policies of `learner` have sampled together."""
        return sum(self.policies[name].agent_steps_sampled for name in self._members[learner])

    def faulted(self, faults: Sequence[Fault]) -> None:
        """What went wrong elsewhere than in a round or an evaluation."""
        for fault in faults:
            self.faults[fault.kind.value] += 1
            self.faults["rows_lost"] += fault.rows_lost

    def _finished(self, episode: EpisodeResult) -> None:
        self.episodes += 1
        for agent, total in episode.returns.items():
            self.agents.setdefault(agent, deque(maxlen=WINDOW_EPISODES)).append(total)
        if (whole := part_of_all(episode)) is not None:
            self.played.add(whole)
        for name, part in parts_by_policy(episode).items():
            if name in self.policies:  # else a frozen version of one, which is not the policy itself
                self.policies[name].played.add(part)
                self.policies[name].episodes += 1

    def evaluated(self, results: Evaluated, context: EvaluationContext) -> None:
        """Evaluation episodes were played; figures of which there is nothing new, since none was played, stay."""
        self.faulted(results.faults)
        for name, evaluation in policies_evaluated(results.episodes, context).items():
            if name in self.policies:
                self.policies[name].evaluation = evaluation
                self.policies[name].evaluation_is_new = True
        wholes = [whole for episode in results.episodes if (whole := part_of_all(episode)) is not None]
        if wholes:
            self.eval_team_return_mean = None if context.pairings else mean([whole.team_return for whole in wholes])

    def record(
        self,
        time_s: float,
        training_s: float,
        stages: Mapping[str, Mapping[str, Any]],
        published: Mapping[str, Weights],
        object_store_bytes: int | None = None,
        schedules: Mapping[str, Mapping[str, float]] | None = None,
    ) -> Report:
        """The record as of now, with the last evaluations; `env_steps_per_s` is since the last report of new env steps.

        `training_s` is up to the last round, without what evaluations took. A record becomes a report by `reported`.
        """
        return {
            "time_s": time_s,
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "episodes": self.episodes,
            "episode_env_steps_mean": mean(self.played.env_steps),
            "team_return_mean": mean(self.played.team_returns),
            "eval_team_return_mean": self.eval_team_return_mean,
            "env_steps_per_s": self._rate(training_s),
            "policies": {name: _policy(tally, _version(published, name)) for name, tally in self.policies.items()},
            "learners": {
                name: tally.metrics(_version(published, self._members[name][0]), (schedules or {}).get(name, {}))
                for name, tally in self.learners.items()
            },
            "agents": {agent: {"return_mean": mean(returns)} for agent, returns in self.agents.items()},
            "stages": {name: _stage(meter) for name, meter in stages.items()},
            "rollouts": self.rollouts.copy(),
            "object_store": {"bytes": object_store_bytes},
            "faults": {
                **self.faults,
                "updates_skipped": sum(tally.updates_skipped for tally in self.learners.values()),
            },
        }

    def news(self, record: Report) -> Report:
        """The record as the next report: without evaluations that an earlier report has."""
        new = {name for name, tally in self.policies.items() if tally.evaluation_is_new}
        policies = {
            name: metrics if name in new else {**metrics, **evaluation_metrics(None)}
            for name, metrics in record["policies"].items()
        }
        of_team = record["eval_team_return_mean"] if new else None
        return {**record, "eval_team_return_mean": of_team, "policies": cast("dict[str, PolicyMetrics]", policies)}

    def _rate(self, training_s: float) -> float:
        steps, since_s = self._reported
        if self.env_steps == steps:  # the report at a run's end may follow one of the same round
            return self._env_steps_per_s
        return (self.env_steps - steps) / max(1e-9, training_s - since_s)

    def reported(self, training_s: float) -> None:
        """The record as of now has been reported: what comes from now on is for the next."""
        self._env_steps_per_s, self._reported = self._rate(training_s), (self.env_steps, training_s)
        for tally in self.policies.values():
            tally.evaluation_is_new = False
        for learned in self.learners.values():
            learned.reported()


def _version(published: Mapping[str, Weights], policy: str) -> int:
    return published[policy].version if policy in published else 0


def _policy(tally: PolicyTotals, version: int) -> PolicyMetrics:
    return {
        "return_mean": tally.return_mean,
        "return_std": spread(tally.played.returns),
        "team_return_mean": mean(tally.played.team_returns),
        "episode_env_steps_mean": mean(tally.played.env_steps),
        **evaluation_metrics(tally.evaluation),
        "episodes": tally.episodes,
        "agent_steps_sampled": tally.agent_steps_sampled,
        "version": version,
        "rows_carried": tally.rows_carried,
        "reward_unattributed": tally.reward_unattributed,
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
