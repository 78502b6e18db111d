"""Settings that change while policies learn: what they are now, and who is told."""

from __future__ import annotations

from collections.abc import Mapping

from marlflow.runtime.protocol import Parts
from marlflow.runtime.spec import RunSpec


class Scheduler:
    """Evaluates the schedules of all policies that learn; tells their learners and replays what has changed.

    What is for actors alone goes with each collect, and to nobody else; so does `copies`, how many there are of the
    environment.
    """

    def __init__(self, spec: RunSpec, parts: Parts) -> None:
        self._spec, self._parts = spec, parts
        self._told: dict[str, Mapping[str, float]] = {}

    def now(self, agent_steps_sampled: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """What the next round is collected with: each policy's scheduled settings, and `copies`."""
        found = self.values(agent_steps_sampled)
        for name, values in found.items():
            actor_only_settings = self._spec.policies[name].algorithm.actor_only_settings
            self._tell(name, {key: value for key, value in values.items() if key not in actor_only_settings})
            values["copies"] = self._spec.copies
        return found

    def values(self, agent_steps_sampled: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """The scheduled settings of each policy, by its own agent steps sampled so far."""
        algorithms = {name: self._spec.policies[name].algorithm for name in self._spec.learning}
        return {name: dict(algorithm.schedules(agent_steps_sampled[name])) for name, algorithm in algorithms.items()}

    def _tell(self, policy: str, settings: Mapping[str, float]) -> None:
        if settings != self._told.get(policy, {}):
            self._told[policy] = settings
            for part in self._parts.of(policy):
                part.set_schedule(settings)
