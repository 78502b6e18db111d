"""Scheduled settings, such as learning rates."""

from __future__ import annotations

from collections.abc import Mapping

from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.spec import RunSpec


class Scheduler:
    """Evaluates schedules, and applies changes to learners and their replays."""

    def __init__(self, spec: RunSpec, parts: RunComponents) -> None:
        self._spec, self._parts = spec, parts
        self._applied: dict[str, Mapping[str, float]] = {}

    def now(self, agent_steps_sampled: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """Apply changes; return each policy's scheduled settings and `num_envs`, to collect with."""
        by_policy: dict[str, dict[str, float]] = {}
        for name, values in self.values(agent_steps_sampled).items():
            learner = self._spec.learners[name]
            actor_only_settings = learner.algorithm.actor_only_settings
            # Settings of actors only, such as epsilon, travel with the request; learners and replays do not know them.
            self._apply(name, {key: value for key, value in values.items() if key not in actor_only_settings})
            by_policy |= {policy: {**values, "num_envs": self._spec.num_envs} for policy in learner.members}
        return by_policy

    def values(self, agent_steps_sampled: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """Return each learner's settings, given the agent steps sampled by each policy."""
        return {
            name: dict(learner.algorithm.schedules(sum(agent_steps_sampled[policy] for policy in learner.members)))
            for name, learner in self._spec.learners.items()
        }

    def _apply(self, learner: str, settings: Mapping[str, float]) -> None:
        if settings != self._applied.get(learner, {}):
            self._applied[learner] = settings
            for part in self._parts.of(learner):
                part.set_schedule(settings)
