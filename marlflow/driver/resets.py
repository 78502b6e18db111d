"""Resets of learners between rounds, as a league asks for them: AlphaStar's exploiters, oracles of PSRO."""

from __future__ import annotations

from collections.abc import Callable

from marlflow.base.errors import MatchmakerFailed
from marlflow.base.serialization import Tree
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.service import Service
from marlflow.driver.stored_members import StoredMembers
from marlflow.flow import Executor
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.population import Reset
from marlflow.sampling.protocol import FrozenPolicy
from marlflow.sampling.saved_state import ResumeReport


class LearnerResets(Service):
    """Resets the learners of policies while nothing is in flight; `counts` has the resets of each learner.

    A learner that is reset continues as a new one: parameters, target, optimizers, random numbers, an empty replay, an
    empty plan, and schedules from their beginning. Versions continue.
    """

    def __init__(
        self,
        spec: RunSpec,
        runtime: Runtime,
        executor: Executor,
        members: StoredMembers,
        scheduler: Scheduler,
        notify: Callable[[str], None],
    ) -> None:
        self._spec, self._runtime, self._executor = spec, runtime, executor
        self._members, self._scheduler, self._notify = members, scheduler, notify
        self.counts = dict.fromkeys(spec.learners, 0)

    def reset_learner(self, reset: Reset) -> None:
        """Reset the learner of a policy.

        Raises MatchmakerFailed if the frozen policy to begin with is of another network, ActorLost if the learner is
        lost meanwhile.
        """
        learner = self._spec.learner_of(reset.policy)
        assert learner is not None, "checked before the run: only policies that learn are reset"
        acting = [self._weights_for(reset, self._members[reset.to])] if reset.to not in ("initial", "fresh") else []
        self.counts[learner.name] += 1
        fresh = learner.with_fresh_seed(self.counts[learner.name])
        dropped = self._executor.restart(learner.name)
        self._runtime.reset_learner(learner if reset.to == "initial" else fresh, acting)
        self._scheduler.restart(learner.name)
        waiting = f"; {dropped:,} agent steps that waited are dropped" if dropped else ""
        self._notify(f"policy {reset.policy} begins again, from {_named(reset.to)}{waiting}")

    def _weights_for(self, reset: Reset, entry: FrozenPolicy) -> object:
        own, other = self._spec.policies[reset.policy], self._spec.policies[entry.policy]
        if not own.has_network_of(other):
            where = f"the reset of policy {reset.policy!r}"
            problem = f"{reset.to!r} is a version of policy {entry.policy!r}, which has another network"
            raise MatchmakerFailed(where, f"{problem}; both need the same algorithm, model and spaces")
        return entry.weights.flat

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        if notes_of(checkpoint).replay == "none":
            for learner in self._spec.learners.values():
                if learner.replays:
                    self._notify(f"the replay of {learner.name} begins empty, since checkpoint.replay was none")
                    self._executor.reapply_starts(learner.name)

    def state(self) -> Tree:
        return dict(self.counts)

    def load_state(self, state: Tree) -> None:
        self.counts.update(state)


def _named(to: str) -> str:
    return {"initial": "its initial parameters", "fresh": "fresh parameters"}.get(to, f"the parameters of {to}")
