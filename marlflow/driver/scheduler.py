"""Settings that change while policies learn: what they are now, and who is told."""

from __future__ import annotations

from collections.abc import Mapping

from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.spec import RunSpec


class Scheduler:
    """Evaluates the schedules of all learners; tells them and their replays what has changed.

    What is for actors alone goes with each collect, and to nobody else; so does `num_envs`, how many there are of the
    environment.
    """

    def __init__(self, spec: RunSpec, parts: RunComponents) -> None:
        self._spec, self._parts = spec, parts
        self._told: dict[str, Mapping[str, float]] = {}

    def now(self, agent_steps_sampled: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """What the next round is collected with: for each policy its learner's scheduled settings, and `num_envs`."""
        found: dict[str, dict[str, float]] = {}
        for name, values in self.values(agent_steps_sampled).items():
            learner = self._spec.learners[name]
            actor_only_settings = learner.algorithm.actor_only_settings
            self._tell(name, {key: value for key, value in values.items() if key not in actor_only_settings})
            found |= {policy: {**values, "num_envs": self._spec.num_envs} for policy in learner.members}
        return found

    def values(self, agent_steps_sampled: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """The scheduled settings of each learner, by the agent steps that its policies have sampled together so far."""
        return {
            name: dict(learner.algorithm.schedules(sum(agent_steps_sampled[policy] for policy in learner.members)))
            for name, learner in self._spec.learners.items()
        }

    def _tell(self, learner: str, settings: Mapping[str, float]) -> None:
        if settings != self._told.get(learner, {}):
            self._told[learner] = settings
            for part in self._parts.of(learner):
                part.set_schedule(settings)
