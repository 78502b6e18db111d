"""NashConv of a league's solution, in runs of small OpenSpiel games and from checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.progress import tracked
from marlflow.base.serialization import Tree
from marlflow.checks.nash_conv import information_states, player_of
from marlflow.config.checked import CheckedExperiment
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.members import Members
from marlflow.policy.actor import DistributionActor, EvaluationModes, WeightedActor, mode_in
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.dealer import Dealer

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


@dataclass(slots=True)
class NashConvMetrics:
    """The NashConv that was computed last, at which env steps of the run, and when the next one is due."""

    value: float | None = None
    env_steps: int | None = None
    due_env_steps: int = 0
    spent_s: float = 0.0

    def state(self) -> Tree:
        """Return the complete state, except the time."""
        return [self.value, self.env_steps, self.due_env_steps]

    def load_state(self, state: Tree) -> None:
        """Restore what `state` returned."""
        self.value, self.env_steps, self.due_env_steps = state


class NashConvEvaluator:
    """Computes the NashConv of a run's league at an interval of env steps and at the end, if it is configured.

    `weights_of` has the present parameters of each member.
    """

    def __init__(
        self, checked: CheckedExperiment, dealer: Dealer | None, weights_of: Callable[[str], MemberWeights]
    ) -> None:
        self.metrics = NashConvMetrics()
        self._weights_of = weights_of
        self._every_env_steps: int | None = None
        matchmaker, league = None if dealer is None else dealer.matchmaker, checked.experiment.league
        if league is not None and league.nash_conv_every_env_steps and isinstance(matchmaker, LeagueMatchmaker):
            self._every_env_steps, self._league = league.nash_conv_every_env_steps, matchmaker
            states = information_states(checked.experiment.env)
            self._computation = SolutionNashConv(checked.spec, states, matchmaker.matches.modes)

    def after_round(self, env_steps: int) -> None:
        """Compute it if it is due."""
        if self._every_env_steps is not None and env_steps >= self.metrics.due_env_steps:
            self.metrics.due_env_steps += self._every_env_steps
            self.compute(env_steps)

    def compute(self, env_steps: int) -> None:
        """Compute it now, if it is configured."""
        if self._every_env_steps is None:
            return
        began_s = time.perf_counter()
        self.metrics.value = self._computation.of(self._league.members, self._league.solution(), self._weights_of)
        self.metrics.env_steps = env_steps
        self.metrics.spent_s += time.perf_counter() - began_s
