"""Scheduled settings, such as learning rates."""

from __future__ import annotations

from collections.abc import Mapping

from marlflow.algorithms.algorithm import parts_of
from marlflow.base.info_columns import COST, coefficient_name
from marlflow.base.schedules import Schedule
from marlflow.base.serialization import Tree
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.learner.part_state import COST_EPISODES, COST_TOTAL
from marlflow.observe.report import Report
from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.spec import LearnerSpec, RunSpec
from marlflow.sampling.protocol import Round


class Scheduler(Service):
    """Evaluates schedules, and applies changes to learners and their replays.

    A learner's schedules count its policies' agent steps since its last reset, if any. A learner with a part that
    reads costs also receives their totals.
    """

    def __init__(self, spec: RunSpec, parts: RunComponents, metrics: RunMetrics) -> None:
        self._spec, self._parts, self._metrics = spec, parts, metrics
        self._applied: dict[str, Mapping[str, float]] = {}
        # By learner: the agent steps sampled before its last reset.
        self._began_at = dict.fromkeys(spec.learners, 0)
        self._settings: dict[str, Mapping[str, float]] = {}
        # By learner: settings that callbacks have changed.
        self._changed: dict[str, Mapping[str, float]] = {}
        # For each learner with a part that reads costs: the totals of its policy.
        self._costs: dict[str, Mapping[str, float]] = {}

    def now(self) -> dict[str, dict[str, float]]:
        """Apply changes; return each policy's scheduled settings and `num_envs`, to collect with."""
        by_learner = self._values()
        for name, values in by_learner.items():
            learner = self._spec.learners[name]
            # Settings of actors and of rows, such as epsilon, travel with the request; learners and replays do not know
            # them.
            others = {*learner.algorithm.actor_only_settings, *_coefficients(learner, 0)}
            self._settings[name] = {key: value for key, value in values.items() if key not in others}
            self._apply(name)
        return self._by_policy(by_learner)

    async def after_round(self, round: Round) -> None:
        # Called before the rows that were sampled with these costs reach the learner.
        self._send_costs()

    def _send_costs(self) -> None:
        """Send each learner with a part that reads costs the sum and count of its policy's costs per episode."""
        totals = self._metrics.cost_totals
        for name, learner in self._spec.learners.items():
            reads_costs = any(COST in part.credited for part in parts_of(learner.algorithm).values())
            if reads_costs and not learner.is_joint:
                cost, episodes = totals[learner.members[0]]
                self._costs[name] = {COST_TOTAL: cost, COST_EPISODES: episodes}
                self._apply(name)

    def by_policy(self) -> dict[str, dict[str, float]]:
        """Return each policy's scheduled settings and `num_envs`, without applying changes."""
        return self._by_policy(self._values())

    def _by_policy(self, by_learner: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        return {
            policy: {**values, "num_envs": self._spec.num_envs}
            for name, values in by_learner.items()
            for policy in self._spec.learners[name].members
        }

    def _values(self) -> dict[str, dict[str, float]]:
        """Return each learner's settings."""
        sampled = self._metrics.agent_steps_sampled_for
        since = {name: sampled(name) - began_at for name, began_at in self._began_at.items()}
        return {
            name: {
                **learner.algorithm.schedules(since[name]),
                **self._changed.get(name, {}),
                **_coefficients(learner, since[name]),
            }
            for name, learner in self._spec.learners.items()
        }

    def change(self, learner: str, settings: Mapping[str, float]) -> None:
        """Give settings of a learner, which have no schedule, other values from the next request on."""
        self._changed[learner] = {**self._changed.get(learner, {}), **settings}

    def restart(self, learner: str) -> None:
        """Count the agent steps of a learner's schedules from now on, and send its settings to its new parts."""
        self._applied.pop(learner, None)
        self._began_at[learner] = self._metrics.agent_steps_sampled_for(learner)

    def state(self) -> Tree:
        return dict(self._began_at)

    def load_state(self, state: Tree) -> None:
        self._began_at.update(state)
        self._send_costs()

    def add_metrics(self, report: Report) -> None:
        for name, values in self._values().items():
            report["learners"][name]["schedules"] = values

    def _apply(self, learner: str) -> None:
        settings = {**self._settings.get(learner, {}), **self._costs.get(learner, {})}
        if settings != self._applied.get(learner, {}):
            self._applied[learner] = settings
            for part in self._parts.of(learner):
                part.set_schedule(settings)


def _coefficients(learner: LearnerSpec, agent_steps: int) -> dict[str, float]:
    """Return the coefficients of the columns that are added to rewards (`Policy.reward_from`)."""
    return {
        coefficient_name(policy.name, column): value.at(agent_steps) if isinstance(value, Schedule) else float(value)
        for policy in learner.policies
        for column, value in policy.reward_from.items()
    }
