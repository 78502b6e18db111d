"""PSRO: policy-space response oracles (Lanctot et al., 2017, arXiv:1711.00832).

Each iteration trains a live policy of each role, its oracle, against rivals drawn from the meta-strategies; takes a
snapshot of each; plays matches of the new profiles; computes the meta-strategies of the larger game between snapshots;
and resets the oracles. The meta-strategies are the result: a role plays one of its members, drawn for each game.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.ranges import Count, PositiveWeight, Steps
from marlflow.base.serialization import Tree
from marlflow.league.matches import Matches, all_profiles, until_known
from marlflow.league.members import Members
from marlflow.league.modes import LeagueMode, LeagueView, pick
from marlflow.league.payoffs import Payoffs, Profile
from marlflow.league.sides import Sides
from marlflow.league.solvers import SOLVERS, Strategies, general_sum, rectified_rivals
from marlflow.sampling.population import Reset

Solver = Literal["nash", "uniform", "replicator", "prd", "alpharank", "rectified"]
OracleFrom = Literal["initial", "fresh", "latest"]

OF_TWO_ROLES = ("nash", "rectified")
"""Solvers of games between two roles that are zero-sum."""

WINDOWS = 10
"""The number of windows in `agent_steps` whose mean returns are compared, for `patience`."""


@dataclass
class PSRO(LeagueMode):
    """Policy-space response oracles.

    An iteration ends after `agent_steps` agent steps of each oracle, or when no oracle's mean training return has risen
    for `patience` windows of a tenth of that. Each new profile plays `games` games, or fewer if the standard errors of
    its returns are below `payoff_se`. `solver` computes the meta-strategies. An oracle then restarts from its `initial`
    parameters or from `fresh` ones, or continues from the `latest`.

    With two interchangeable sides (`league.symmetric`), `alpharank` uses one population, whose members meet each other.

    The members of a role are all fixed policies that can play it, such as `random`, and all snapshots.

    With `rectified` (Balduzzi et al., 2019, arXiv:1901.08106), a role's first oracle trains for the likeliest member
    of its meta-strategy, the second for the next one, each against the rivals that this member does not lose to.
    """

    solver: Solver = "nash"  #: of the game between members: nash, uniform, replicator, prd, alpharank, rectified
    agent_steps: Steps = 30_000  #: agent steps of each policy in an iteration
    patience: Count | None = None  #: tenths of an iteration without a higher return after which it ends; None: never
    games: Count = 500  #: games of each new profile of members
    payoff_se: PositiveWeight | None = None  #: standard error of returns from which on fewer games suffice; None: all
    oracle_from: OracleFrom = "fresh"  #: what a policy begins the next iteration with: initial, fresh, latest
    iteration: int = field(default=0, init=False)
    """The number of iterations that have ended: the number of snapshots of each oracle."""
    meta: list[dict[str, float]] = field(default_factory=list, init=False)
    """The meta-strategy of each role, the probability of each member; empty before the first solution."""

    def __post_init__(self) -> None:
        # The mixture of rivals that each oracle trains against, by the role of the rivals.
        self._rectified: list[dict[str, dict[str, float]]] = []
        self._windows: dict[str, _Windows] = {}
        # The oracles whose snapshot ends an iteration; used within one change of the population.
        self._ending: set[str] = set()

    def problems(self, members: Members) -> list[str]:
        problems = []
        if self.solver in OF_TWO_ROLES and not _is_of_two_roles(members.sides):
            roles = ", ".join(role.name for role in members.sides.roles)
            problems.append(
                f"the solver {self.solver!r} is for two sides of one role each, and the roles are {roles}; "
                "use prd, replicator, uniform or alpharank"
            )
        for number, role in enumerate(members.sides.roles):
            if not members.live_in(number):
                problems.append(f"no learning policy can play role {role.name!r}, so PSRO has no oracle for it")
        return problems

    def populations(self, members: Members) -> list[list[str]]:
        """Return the members of each role: fixed policies, then snapshots, oldest first."""
        roles = range(len(members.sides.roles))
        return [[*members.fixed_in(role), *members.past_in(role)] for role in roles]

    def rival(self, view: LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        if not self.meta:
            population = self.populations(view.members)[role]
            return pick(population, generator) if population else None
        mixture = self._rectified[role].get(policy, self.meta[role]) if self._rectified else self.meta[role]
        return pick(list(mixture), generator, np.array(list(mixture.values())))

    def snapshots_due(self, view: LeagueView, agent_steps: Mapping[str, int]) -> Collection[str]:
        """Return all oracles at the end of an iteration: all snapshots of an iteration are taken at once."""
        done = [steps >= self.agent_steps for steps in agent_steps.values()]
        if self.patience is not None:
            for policy, steps in agent_steps.items():
                windows = self._windows.setdefault(policy, _Windows())
                windows.add(view, policy, steps, self.agent_steps / WINDOWS)
            plateaus = [self._windows[policy].have_a_plateau(self.patience) for policy in agent_steps]
            done = [either or plateau for either, plateau in zip(done, plateaus, strict=True)]
        if not all(done):
            return ()
        for policy, windows in self._windows.items():
            windows.restart(view, policy)
        self._ending = set(agent_steps)
        self.iteration += 1
        return tuple(agent_steps)

    def may_reset(self, policy: str) -> bool:
        return self.oracle_from != "latest"

    def reset_after_snapshot(self, policy: str, generator: np.random.Generator) -> Reset | None:
        """Return the reset of `policy` if its new snapshot ends an iteration, or None."""
        del generator
        if policy not in self._ending:
            return None
        self._ending.remove(policy)
        return None if self.oracle_from == "latest" else Reset(policy, self.oracle_from)

    def matches_wanted(self, members: Members, matches: Matches) -> dict[Profile, int]:
        if not self._is_out_of_date(members):
            return {}
        return until_known(all_profiles(self.populations(members)), matches, self.games, self.payoff_se)

    def _is_out_of_date(self, members: Members) -> bool:
        populations = self.populations(members)
        return all(populations) and populations != [list(mixture) for mixture in self.meta]

    def solve(self, members: Members, payoffs: Payoffs) -> None:
        """Compute the meta-strategies from the mean returns of matches, if there are new members.

        Raises MarlflowError if a profile has no games, or the solver is not for this game.
        """
        if not self._is_out_of_date(members):
            return
        populations = self.populations(members)
        returns = payoffs.matrices(populations)
        _check_known(returns, populations)
        strategies = self._strategies(returns, populations, payoffs)
        self.meta = [_named(names, mixture) for names, mixture in zip(populations, strategies, strict=True)]
        if self.solver == "rectified":
            roles = range(len(populations))
            self._rectified = [self._rivals_of_oracles(members, returns, strategies, role) for role in roles]

    def _strategies(self, returns: Array, populations: Sequence[Sequence[str]], payoffs: Payoffs) -> Strategies:
        if self.solver == "alpharank":
            # Imported here, because the import takes a fifth of a second, and few runs need it.
            from marlflow.league.alpharank import MOST_PROFILES, alpharank, alpharank_of_one_population, marginals

            if _are_one_population(populations, payoffs):
                distribution = alpharank_of_one_population(returns[0])
                return [distribution, distribution.copy()]
            if returns[0].size > MOST_PROFILES:
                raise MarlflowError(
                    f"alpha-rank of {returns[0].size:,} profiles is too much; the most are {MOST_PROFILES:,}; use prd"
                )
            return marginals(alpharank(returns))
        if self.solver in OF_TWO_ROLES:
            _check_constant_sum(self.solver, returns, populations, payoffs)
        return SOLVERS[self.solver](returns)

    def _rivals_of_oracles(
        self, members: Members, returns: Array, strategies: Strategies, rival_role: int
    ) -> dict[str, dict[str, float]]:
        role, names = 1 - rival_role, self.populations(members)[rival_role]
        likeliest_first = np.argsort(-strategies[role], kind="stable").tolist()
        support = [member for member in likeliest_first if strategies[role][member] > 0]
        return {
            oracle: _named(names, rectified_rivals(returns, strategies, role, support[number % len(support)]))
            for number, oracle in enumerate(members.live_in(role))
        }

    def solution(self, members: Members) -> Sequence[Mapping[str, float]] | None:
        """Return the meta-strategies; None before the first solution."""
        del members
        return self.meta or None

    def state(self) -> Tree:
        return {
            "iteration": self.iteration,
            "meta": [dict(mixture) for mixture in self.meta],
            "rectified": [{oracle: dict(one) for oracle, one in by_oracle.items()} for by_oracle in self._rectified],
            "windows": {policy: asdict(windows) for policy, windows in self._windows.items()},
        }

    def state_shape(self) -> Tree:
        # Not of a subclass, which may keep anything else beside.
        return PSRO.state(self)

    def load_state(self, tree: Any) -> None:
        self.iteration = tree["iteration"]
        self.meta = [dict(mixture) for mixture in tree["meta"]]
        self._rectified = [{oracle: dict(one) for oracle, one in by_oracle.items()} for by_oracle in tree["rectified"]]
        self._windows = {policy: _Windows(**windows) for policy, windows in tree["windows"].items()}


def _are_one_population(populations: Sequence[Sequence[str]], payoffs: Payoffs) -> bool:
    return payoffs.symmetric and _is_of_two_roles(payoffs.sides) and populations[0] == populations[1]


def _is_of_two_roles(sides: Sides) -> bool:
    return len(sides.roles) == 2 and len(sides.names) == 2


def _named(names: Sequence[str], mixture: Array) -> dict[str, float]:
    return {name: float(weight) for name, weight in zip(names, mixture, strict=True)}


def _check_known(returns: Array, populations: Sequence[Sequence[str]]) -> None:
    missing = np.argwhere(np.isnan(returns[0]))
    if len(missing):
        profile = [names[number] for names, number in zip(populations, missing[0], strict=True)]
        raise MarlflowError(
            f"the meta-game has no payoff of {' against '.join(profile)}: all its matches broke; the faults say why"
        )


def _check_constant_sum(solver: str, returns: Array, populations: Sequence[Sequence[str]], payoffs: Payoffs) -> None:
    errors = np.zeros_like(returns)
    for index, profile in zip(np.ndindex(returns.shape[1:]), all_profiles(populations), strict=True):
        errors[(slice(None), *index)] = payoffs.returns(profile)[1]
    if (reason := general_sum(returns, errors)) is not None:
        numbered = " and ".join(", ".join(names) for names in populations)
        raise MarlflowError(f"the solver {solver!r} is for zero-sum games: {reason} (counted from 0, of {numbered})")


@dataclass
class _Windows:
    """The mean training returns of an oracle over windows of agent steps."""

    means: list[float] = field(default_factory=list)
    games: int = 0
    total: float = 0.0
    begun_at: int = 0
    incarnation: int = 0

    def add(self, view: LeagueView, policy: str, agent_steps: int, window_agent_steps: float) -> None:
        """End a window if it is long enough."""
        if agent_steps - self.begun_at < window_agent_steps:
            return
        games, total = _games_and_sum(view.payoffs, policy)
        if self.incarnation != view.members.incarnations[policy]:
            # The policy was reset, and its games with it.
            self.incarnation, self.games, self.total = view.members.incarnations[policy], 0, 0.0
        if games > self.games:
            self.means.append((total - self.total) / (games - self.games))
        self.games, self.total, self.begun_at = games, total, agent_steps

    def restart(self, view: LeagueView, policy: str) -> None:
        """Begin with a new iteration, whose agent steps count from 0."""
        self.games, self.total = _games_and_sum(view.payoffs, policy)
        self.means, self.begun_at = [], 0

    def have_a_plateau(self, patience: int) -> bool:
        """Return whether none of the last `patience` means is above all means before."""
        return len(self.means) > patience and max(self.means[-patience:]) <= max(self.means[:-patience])


def _games_and_sum(payoffs: Payoffs, policy: str) -> tuple[int, float]:
    """Return the number of a policy's training games, in all its roles, and the sum of its returns."""
    cells = [
        returns
        for profile, cell in payoffs.cells.items()
        for member, returns in zip(profile, cell.roles, strict=True)
        if member == policy
    ]
    return sum(cell.n for cell in cells), sum(cell.n * cell.mean for cell in cells)
