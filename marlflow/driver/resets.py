"""Resets of learners between rounds, as a league asks for them: AlphaStar's exploiters, oracles of PSRO."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marlflow.base.errors import MatchmakerFailed
from marlflow.base.serialization import Tree
from marlflow.driver.scheduler import Scheduler
from marlflow.flow import Executor
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.population import Reset
from marlflow.sampling.protocol import FrozenPolicy


class LearnerResets:
    """Resets the learners of policies while nothing is in flight; `counts` has the resets of each learner.

    A learner that is reset continues as a new one: parameters, target, optimizers, random numbers, an empty replay, an
    empty plan, and schedules from their beginning. Versions continue.
    """

    def __init__(self, spec: RunSpec, runtime: Runtime, scheduler: Scheduler, notify: Callable[[str], None]) -> None:
        self._spec, self._runtime, self._scheduler, self._notify = spec, runtime, scheduler, notify
        self.counts = dict.fromkeys(spec.learners, 0)

    def reset_learner(
        self,
        reset: Reset,
        entries: Mapping[str, FrozenPolicy],
        agent_steps_sampled: Mapping[str, int],
        executor: Executor,
    ) -> None:
        """Reset the learner of a policy; `entries` are frozen policies to begin with.

        Raises MatchmakerFailed if the entry is of another network, ActorLost if the learner is lost meanwhile.
        """
        learner = self._spec.learner_of(reset.policy)
        assert learner is not None, "checked before the run: only policies that learn are reset"
        acting = [self._weights_for(reset, entries[reset.to])] if reset.to not in ("initial", "fresh") else []
        self.counts[learner.name] += 1
        fresh = learner.with_fresh_seed(self.counts[learner.name])
        dropped = executor.restart(learner.name)
        self._runtime.reset_learner(learner if reset.to == "initial" else fresh, acting)
        self._scheduler.restart(learner.name, agent_steps_sampled)
        waiting = f"; {dropped:,} agent steps that waited are dropped" if dropped else ""
        self._notify(f"policy {reset.policy} begins again, from {_named(reset.to)}{waiting}")

    def _weights_for(self, reset: Reset, entry: FrozenPolicy) -> object:
        own, other = self._spec.policies[reset.policy], self._spec.policies[entry.policy]
        if not own.has_network_of(other):
            where = f"the reset of policy {reset.policy!r}"
            problem = f"{reset.to!r} is a version of policy {entry.policy!r}, which has another network"
            raise MatchmakerFailed(where, f"{problem}; both need the same algorithm, model and spaces")
        return entry.weights.flat

    def state(self) -> Tree:
        """Return the counts."""
        return dict(self.counts)

    def load_state(self, state: Mapping[str, int]) -> None:
        """Restore what `state` returned."""
        self.counts.update(state)


def _named(to: str) -> str:
    return {"initial": "its initial parameters", "fresh": "fresh parameters"}.get(to, f"the parameters of {to}")
