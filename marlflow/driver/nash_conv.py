"""NashConv of a league's solution, in runs of small OpenSpiel games and from checkpoints.

`league.exploitability` computes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.progress import tracked
from marlflow.base.serialization import Tree
from marlflow.checks.leagues import information_states, player_of
from marlflow.config.checked import CheckedExperiment
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service, due_within
from marlflow.driver.stored_members import StoredMembers
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.members import Members
from marlflow.matchmaking.dealer import Dealer
from marlflow.policy.actor import DistributionActor, EvaluationModes, WeightedActor, mode_in
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.protocol import Round
from marlflow.sampling.saved_state import ResumeReport

if TYPE_CHECKING:
    from marlflow.league.exploitability import InformationStates


class MemberWeights(NamedTuple):
    """A member's parameters, float32 [P], or None if it has none, and its scheduled values."""

    flat: Array | None
    scheduled: Mapping[str, float]


class SolutionNashConv:
    """Computes the NashConv of mixtures of members; tables of snapshots, which never change, are computed once."""

    def __init__(self, spec: RunSpec, states: InformationStates, modes: EvaluationModes) -> None:
        self._spec, self._states, self._modes = spec, states, modes
        self._tables: dict[str, Array] = {}

    def of(
        self, members: Members, solution: Sequence[Mapping[str, float]], weights_of: Callable[[str], MemberWeights]
    ) -> float:
        """Return the NashConv of the mixtures of `solution`, one for each role."""
        tables: dict[str, Array] = {}
        policies: list[list[Array]] = [[] for _ in solution]
        weights: list[Array] = [np.zeros(0) for _ in solution]
        for role, mixture in zip(members.sides.roles, solution, strict=True):
            player = player_of(role)
            drawn = {name: weight for name, weight in mixture.items() if weight > 0}
            for name in tracked(f"computing the policies of {role.name}", list(drawn)):
                if name not in tables:
                    tables[name] = self._table(members, name, weights_of)
            policies[player] = [tables[name] for name in drawn]
            weights[player] = np.array(list(drawn.values()))
        return self._states.nash_conv(self._states.mixture(policies, weights))

    def _table(self, members: Members, name: str, weights_of: Callable[[str], MemberWeights]) -> Array:
        if name in self._tables:
            return self._tables[name]
        policy = members.policy_of(name)
        actor = self._spec.policies[policy].actor()
        flat, scheduled = weights_of(name)
        if flat is not None and isinstance(actor, WeightedActor):
            # Published parameters may end with a critic.
            actor.load_flat(np.array(flat[: len(actor.flat())]))
        actor.set_schedule(scheduled)
        assert isinstance(actor, DistributionActor), "the configuration was checked"
        table = self._states.policy_of(actor, mode_in(self._modes, name, policy))
        if not members.is_live(name):
            self._tables[name] = table
        return table


class NashConvEvaluator(Service):
    """Computes the NashConv of a run's league at an interval of env steps and at the end, if it is configured.

    `value` is the last one, computed at `env_steps` of the run. `spent_s`: seconds spent so far.
    """

    def __init__(
        self,
        checked: CheckedExperiment,
        dealer: Dealer | None,
        members: StoredMembers,
        parts: RunComponents,
        metrics: RunMetrics,
    ) -> None:
        self._members, self._parts, self._metrics = members, parts, metrics
        self.value: float | None = None
        self.env_steps: int | None = None
        self.spent_s = 0.0
        self._due_env_steps = 0
        self._every_env_steps: int | None = None
        matchmaker, league = None if dealer is None else dealer.matchmaker, checked.experiment.league
        if league is not None and league.nash_conv_every_env_steps and isinstance(matchmaker, LeagueMatchmaker):
            self._every_env_steps, self._league = league.nash_conv_every_env_steps, matchmaker
            states = information_states(checked.experiment.env)
            self._computation = SolutionNashConv(checked.spec, states, matchmaker.matches.modes)

    def state(self) -> Tree:
        return {
            "value": self.value,
            "env_steps": self.env_steps,
            "due_env_steps": self._due_env_steps,
            "spent_s": self.spent_s,
        }

    def load_state(self, state: Tree) -> None:
        self.value, self.env_steps = state["value"], state["env_steps"]
        self._due_env_steps, self.spent_s = state["due_env_steps"], state["spent_s"]

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        if self._every_env_steps is not None:
            self._due_env_steps = due_within(self._due_env_steps, self._metrics.env_steps, self._every_env_steps)

    async def after_round(self, round: Round) -> None:
        if self._every_env_steps is not None and self._metrics.env_steps >= self._due_env_steps:
            while self._due_env_steps <= self._metrics.env_steps:
                self._due_env_steps += self._every_env_steps
            self._compute()

    def at_end(self) -> None:
        if self._every_env_steps is not None:
            self._compute()

    def _compute(self) -> None:
        began_s = time.perf_counter()
        self.value = self._computation.of(self._league.members, self._league.solution(), self._weights_of)
        self.env_steps = self._metrics.env_steps
        self.spent_s += time.perf_counter() - began_s

    def _weights_of(self, member: str) -> MemberWeights:
        """Return the present parameters of a member of the league, on the driver."""
        frozen = self._members.get(member)
        weights = self._parts.published().get(member) if frozen is None else frozen.weights
        flat = None if weights is None else self._parts.driver.fetch(weights.flat)
        return MemberWeights(flat, {} if frozen is None else frozen.scheduled)
