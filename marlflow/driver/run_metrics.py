"""Metrics of a run: totals of receipts and updates, and reports. Sees no rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, cast

from marlflow.base.errors import FaultKind
from marlflow.base.info_columns import COST
from marlflow.base.serialization import Tree
from marlflow.batches.items import Update, Weights
from marlflow.config.checked import CheckedExperiment
from marlflow.driver.episode_metrics import (
    WINDOW_EPISODES,
    EpisodeWindow,
    EvaluationContext,
    PolicyEvaluation,
    evaluation_metrics,
    fmean,
    last_of_each_kind,
    mean,
    means_by_policy,
    policies_evaluated,
    spread,
    totals_by_policy,
    totals_of_all_agents,
)
from marlflow.driver.learner_totals import LearnerTotals
from marlflow.driver.service import Service
from marlflow.observe.report import NO_ROLLOUTS, LearnerMetrics, PolicyMetrics, Report, RolloutMetrics, StageMetrics
from marlflow.runs.checkpoints import Checkpoint
from marlflow.sampling.protocol import Round
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Fault, MembersSent, Receipt
from marlflow.sampling.saved_state import ResumeReport

FAULTS = (
    "agents_vanished",
    # Skipped updates are counted by each learner.
    *(kind.value for kind in FaultKind if kind is not FaultKind.UPDATES_SKIPPED),
    "episodes_abandoned",
    "episodes_restarted",
    "rows_lost",
)
_COSTS = ("cost_total", "cost_episodes")
_MOST_AGENTS = 1_000
"""Agents that are not declared are forgotten if more come, those that came first before the others."""
_POLICY_TOTALS = ("episodes", "agent_steps_sampled", "rows_carried", "reward_unattributed", *_COSTS)


@dataclass(slots=True)
class PolicyTotals:
    """Totals of one policy."""

    played: EpisodeWindow = field(default_factory=EpisodeWindow)
    evaluation: PolicyEvaluation | None = None
    evaluation_is_new: bool = False
    episodes: int = 0
    agent_steps_sampled: int = 0
    rows_carried: int = 0
    reward_unattributed: float = 0.0
    infos_unattributed: dict[str, float] = field(default_factory=dict)
    cost_total: float = 0.0
    """The mean cost of its agents, summed over `cost_episodes`, all training episodes whose costs were read."""
    cost_episodes: int = 0

    @property
    def return_mean(self) -> float | None:
        """Mean return per agent over the last 100 training episodes."""
        return mean(self.played.returns)

    @property
    def settled_return_mean(self) -> float | None:
        """Mean return for stop conditions; None before 100 episodes have ended."""
        return self.return_mean if self.played.is_full else None

    def state(self) -> Tree:
        """Return the complete state."""
        return {
            **{name: getattr(self, name) for name in _POLICY_TOTALS},
            "infos_unattributed": dict(self.infos_unattributed),
            "played": self.played.state(),
            "evaluation": None if self.evaluation is None else self.evaluation.state(),
            "evaluation_is_new": self.evaluation_is_new,
        }

    def load_state(self, state: Tree) -> None:
        """Restore `state`."""
        for name in _POLICY_TOTALS:
            setattr(self, name, state[name])
        self.infos_unattributed = dict(state["infos_unattributed"])
        self.played.load_state(state["played"])
        self.evaluation = None if state["evaluation"] is None else PolicyEvaluation(**state["evaluation"])
        self.evaluation_is_new = state["evaluation_is_new"]


class RunMetrics(Service):
    """The totals of a run.

    `learners` has each learner's policies, `learners_of_others` the learners that learn from rows of other policies.
    """

    def __init__(
        self,
        policies: Sequence[str],
        learners: Mapping[str, Sequence[str]],
        agents: Sequence[str],
        learners_of_others: Collection[str] = (),
    ) -> None:
        self.policies = {name: PolicyTotals() for name in policies}
        self.learners = {
            name: LearnerTotals(members, has_staleness=name not in learners_of_others)
            for name, members in learners.items()
        }
        self._members = learners
        self.agents = {agent: deque[float](maxlen=WINDOW_EPISODES) for agent in agents}
        self.played = EpisodeWindow()
        self.eval_team_return_mean: float | None = None
        self.env_steps = self.agent_steps = self.episodes = 0
        self.faults = dict.fromkeys(FAULTS, 0)
        self.rollouts = RolloutMetrics(**NO_ROLLOUTS)
        self.sent = MembersSent()
        """Frozen policies sent to workers in training."""
        self._reported = (0, 0.0)
        self._env_steps_per_s = 0.0

    async def after_round(self, round: Round) -> None:
        self.collected(round.receipts)

    def updated(self, learner: str, update: Update) -> None:
        self.learners[learner].updated(update)

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        self.faults["episodes_abandoned"] += report.episodes_abandoned
        self.faults["episodes_restarted"] += report.episodes_restarted
        self.faults["rows_lost"] += report.rows_lost

    def collected(self, receipts: Sequence[Receipt]) -> None:
        """Count the receipts of a round."""
        for receipt in receipts:
            self.env_steps += receipt.env_steps
            self.agent_steps += receipt.agent_steps
            self.faults["agents_vanished"] += receipt.agents_vanished
            self.faulted(receipt.faults)
            self.sent += receipt.sent
            self.rollouts["env_s"] += receipt.env_s
            self.rollouts["policy_s"] += receipt.policy_s
            self.rollouts["bookkeeping_s"] += receipt.bookkeeping_s
            self.rollouts["actions_corrected"] += receipt.actions_corrected
            self.rollouts["compiles"] += receipt.compiled.compiles
            self.rollouts["compile_s"] += receipt.compiled.compile_s
            for name, sampled in receipt.policies.items():
                totals = self.policies[name]
                totals.agent_steps_sampled += sampled.rows
                totals.rows_carried += sampled.rows_carried
                totals.reward_unattributed += sampled.reward_unattributed
                for column, amount in sampled.infos_unattributed.items():
                    totals.infos_unattributed[column] = totals.infos_unattributed.get(column, 0.0) + amount
        ended = [episode for receipt in receipts for episode in receipt.episodes]
        # Sorted, so that sums and windows do not depend on how environments are divided among workers.
        self._finished(sorted(ended, key=attrgetter("tick", "env")))

    def state(self) -> Tree:
        return {
            "policies": {name: totals.state() for name, totals in self.policies.items()},
            "learners": {name: totals.state() for name, totals in self.learners.items()},
            "agents": {agent: list(returns) for agent, returns in self.agents.items()},
            "played": self.played.state(),
            "eval_team_return_mean": self.eval_team_return_mean,
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "episodes": self.episodes,
            "faults": dict(self.faults),
            "rollouts": dict(self.rollouts),
            "sent": [self.sent.members, self.sent.size_bytes, self.sent.hits],
            "reported": list(self._reported),
            "env_steps_per_s": self._env_steps_per_s,
        }

    def load_state(self, state: Tree) -> None:
        for name, totals in self.policies.items():
            totals.load_state(state["policies"][name])
        for learner, learner_totals in self.learners.items():
            learner_totals.load_state(state["learners"][learner])
        for agent, returns in state["agents"].items():
            self.agents.setdefault(agent, deque(maxlen=WINDOW_EPISODES)).extend(returns)
        self.played.load_state(state["played"])
        self.eval_team_return_mean = state["eval_team_return_mean"]
        self.env_steps, self.agent_steps = state["env_steps"], state["agent_steps"]
        self.episodes = state["episodes"]
        self.faults |= state["faults"]
        self.rollouts = cast("RolloutMetrics", {**self.rollouts, **state["rollouts"]})
        self.sent = MembersSent(*state["sent"])
        steps, since_s = state["reported"]
        self._reported, self._env_steps_per_s = (steps, since_s), state["env_steps_per_s"]

    @property
    def agent_steps_sampled(self) -> dict[str, int]:
        """Agent steps sampled by each policy."""
        return {name: totals.agent_steps_sampled for name, totals in self.policies.items()}

    @property
    def cost_totals(self) -> dict[str, tuple[float, int]]:
        """The summed mean costs of each policy's training episodes whose costs were read, and their number."""
        return {name: (totals.cost_total, totals.cost_episodes) for name, totals in self.policies.items()}

    def agent_steps_sampled_for(self, learner: str) -> int:
        """Return the agent steps sampled by all policies of `learner`."""
        return sum(self.policies[name].agent_steps_sampled for name in self._members[learner])

    def faulted(self, faults: Sequence[Fault]) -> None:
        """Count faults and lost rows."""
        for fault in faults:
            self.faults[fault.kind.value] += 1
            self.faults["rows_lost"] += fault.rows_lost

    def _finished(self, episodes: Sequence[EpisodeResult]) -> None:
        self.episodes += len(episodes)
        last, counts = last_of_each_kind(episodes, WINDOW_EPISODES)
        for policies, count in counts.items():
            # Frozen versions of a policy are not the policy itself.
            for name in self.policies.keys() & policies:
                self.policies[name].episodes += count
        for episode in last:
            self._add_to_windows(episode)
        for episode in episodes:
            for name, cost in means_by_policy(episode, COST).items():
                if name in self.policies:
                    self.policies[name].cost_total += cost
                    self.policies[name].cost_episodes += 1

    def _add_to_windows(self, episode: EpisodeResult) -> None:
        for agent, total in episode.returns.items():
            if agent not in self.agents and len(self.agents) >= _MOST_AGENTS:
                # Undeclared agents may have new names in each episode.
                del self.agents[next(iter(self.agents))]
            self.agents.setdefault(agent, deque(maxlen=WINDOW_EPISODES)).append(total)
        if (totals := totals_of_all_agents(episode)) is not None:
            self.played.add(totals)
        for learner in self.learners.values():
            learner.finished(episode)
        for name, totals in totals_by_policy(episode).items():
            if name in self.policies:
                self.policies[name].played.add(totals)

    def evaluated(self, results: Evaluated, context: EvaluationContext) -> None:
        """Store an evaluation; policies without episodes keep their last results."""
        self.faulted(results.faults)
        for name, evaluation in policies_evaluated(results, context).items():
            if name in self.policies:
                self.policies[name].evaluation = evaluation
                self.policies[name].evaluation_is_new = True
        if not context.pairings:
            for learner in self.learners.values():
                learner.evaluated(results.episodes)
        all_totals = [totals for episode in results.episodes if (totals := totals_of_all_agents(episode)) is not None]
        if all_totals:
            self.eval_team_return_mean = (
                None if context.pairings else mean([totals.team_return for totals in all_totals])
            )

    def report(
        self,
        time_s: float,
        training_s: float,
        stages: Mapping[str, Mapping[str, Any]],
        published: Mapping[str, Weights],
        object_store_bytes: int | None = None,
    ) -> Report:
        """Return the current report, with the last evaluations, and without the metrics of other services.

        `training_s` is the time up to the last round, without evaluations and matches. `env_steps_per_s` is the rate
        since the last report with fewer env steps.
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
            "policies": {name: _policy(totals, _version(published, name)) for name, totals in self.policies.items()},
            "learners": {
                name: totals.metrics(_version(published, self._members[name][0]))
                for name, totals in self.learners.items()
            },
            "agents": {agent: {"return_mean": mean(returns)} for agent, returns in self.agents.items()},
            "stages": {name: _stage(meter) for name, meter in stages.items()},
            "rollouts": self.rollouts.copy(),
            "object_store": {"bytes": object_store_bytes},
            "faults": self.fault_counts(),
        }

    def fault_counts(self) -> dict[str, int]:
        """Return the faults so far by kind, with the updates that learners skipped."""
        return {**self.faults, "updates_skipped": sum(totals.updates_skipped for totals in self.learners.values())}

    @property
    def evaluated_at(self) -> int | None:
        """The env steps at which policies were evaluated last; None if none was."""
        return max((one.evaluation.env_steps for one in self.policies.values() if one.evaluation), default=None)

    def without_old_evaluations(self, report: Report) -> Report:
        """Return the report without evaluations that were reported before."""
        new = {name for name, totals in self.policies.items() if totals.evaluation_is_new}
        policies = {
            name: metrics if name in new else {**metrics, **evaluation_metrics(None)}
            for name, metrics in report["policies"].items()
        }
        no_evaluation = {"eval_return_mean": None, "eval_team_return_mean": None}
        learners = {
            name: metrics if self.learners[name].evaluation_is_new else {**metrics, **no_evaluation}
            for name, metrics in report["learners"].items()
        }
        eval_team_return_mean = report["eval_team_return_mean"] if new else None
        return {
            **report,
            "eval_team_return_mean": eval_team_return_mean,
            "policies": cast("dict[str, PolicyMetrics]", policies),
            "learners": cast("dict[str, LearnerMetrics]", learners),
        }

    def _rate(self, training_s: float) -> float:
        steps, since_s = self._reported
        # The last report of a run may follow another one of the same round.
        if self.env_steps == steps:
            return self._env_steps_per_s
        return (self.env_steps - steps) / max(1e-9, training_s - since_s)

    def reported(self, training_s: float) -> None:
        """Start a new period for rates, means and evaluations after a report."""
        self._env_steps_per_s, self._reported = self._rate(training_s), (self.env_steps, training_s)
        for totals in self.policies.values():
            totals.evaluation_is_new = False
        for learner_totals in self.learners.values():
            learner_totals.reported()


def _version(published: Mapping[str, Weights], policy: str) -> int:
    return published[policy].version if policy in published else 0


def _policy(totals: PolicyTotals, version: int) -> PolicyMetrics:
    return {
        "return_mean": totals.return_mean,
        "return_std": spread(totals.played.returns),
        "team_return_mean": mean(totals.played.team_returns),
        "episode_env_steps_mean": mean(totals.played.env_steps),
        **evaluation_metrics(totals.evaluation),
        "episodes": totals.episodes,
        "agent_steps_sampled": totals.agent_steps_sampled,
        "version": version,
        "rows_carried": totals.rows_carried,
        "reward_unattributed": totals.reward_unattributed,
        "infos": {name: fmean(values) for name, values in totals.played.infos.items()},
        "infos_unattributed": dict(totals.infos_unattributed),
    }


def _stage(meter: Mapping[str, Any]) -> StageMetrics:
    stage: StageMetrics = {
        "items": meter["items"],
        "rows": meter["rows"],
        "dropped": meter["dropped"],
        "rows_dropped": meter["rows_dropped"],
        "busy_s": meter["busy_s"],
        "starved_s": meter["starved_s"],
        "blocked_s": meter["blocked_s"],
    }
    if "waiting" in meter:
        stage["waiting"] = meter["waiting"]
    return stage


def metrics_of(checked: CheckedExperiment) -> RunMetrics:
    """Return the metrics of a run that has not begun."""
    learners = checked.spec.learners
    members = {name: learner.members for name, learner in learners.items()}
    of_others = [name for name, learner in learners.items() if learner.others]
    return RunMetrics(tuple(checked.spec.policies), members, checked.agents, of_others)
