"""NashConv of runs in small games of OpenSpiel, from their checkpoints; and double oracle with exact best responses.

NashConv is computed exactly for what the members of a league would play, not estimated from games.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path

import numpy as np
from open_spiel.python.algorithms.best_response import BestResponsePolicy

from marlflow.base.arrays import Array
from marlflow.checks.validation import from_config, ready
from marlflow.config.checked import CheckedExperiment
from marlflow.config.compose import composing
from marlflow.config.overrides import prepare
from marlflow.league.exploitability import InformationStates
from marlflow.league.solvers import nash
from marlflow.policy.actor import EvaluationMode
from marlflow.runs.saved_league import SavedLeague, league_of, saved_run
from marlflow.runs.saved_policies import saved_policy

Solver = Callable[[Array], list[Array]]


def checked(words: Sequence[str]) -> CheckedExperiment:
    """Return the experiment that `marlflow train` would run for `words`; raises ConfigInvalid."""
    with composing():
        job = prepare(words)
    return ready(from_config(job.config, job.problems))


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a league with one live policy: fixed policies, then its snapshots, oldest first.

    `policies` has the action probabilities of each member, and of the live policy, in all information states, [S, A].
    """

    league: SavedLeague
    states: InformationStates
    fixed: tuple[str, ...]
    snapshots: tuple[str, ...]
    policies: Mapping[str, Array]


def members_of(
    experiment: CheckedExperiment, run_dir: Path, modes: Mapping[str, EvaluationMode] | None = None
) -> Members:
    """Read the members from a run's newest checkpoint; members that are not in `modes` act as sampled."""
    run = saved_run(run_dir)
    league = league_of(run)
    arguments = experiment.experiment.env.arguments
    states = InformationStates(**{name: arguments[name] for name in ("game", "parameters", "observation")})
    fixed, snapshots = tuple(league.members.fixed_in(0)), tuple(league.members.snapshots)
    policies = {}
    for name in (*fixed, *snapshots, *league.members.incarnations):
        actor = experiment.spec.policies[league.members.policy_of(name)].actor()
        if name not in fixed:
            size = len(actor.flat())  # type: ignore[attr-defined]
            # Published parameters may have the critic's after the actor's.
            actor.load_flat(saved_policy(run, name).flat[:size])  # type: ignore[attr-defined]
        policies[name] = states.policy_of(actor, (modes or {}).get(name, "sampled"))  # type: ignore[arg-type]
    return Members(league, states, fixed, snapshots, policies)


@dataclass(frozen=True, slots=True)
class Solution:
    """The meta-strategies over the first `members` members, the policy that plays like them, and its NashConv."""

    members: int
    strategies: list[Array]
    policy: Array
    nash_conv: float


def solutions(members: Members, solver: Solver = nash) -> Iterator[Solution]:
    """Yield the solution of each iteration of PSRO whose matches were played."""
    everybody = members.fixed + members.snapshots
    for number in range(max(1, len(members.fixed)), len(everybody) + 1):
        names = everybody[:number]
        returns = members.league.matches.matrices([names, names])
        if np.isnan(returns).any():
            return
        strategies = solver(returns)
        own = [members.policies[name] for name in names]
        mixed = members.states.mixture([own, own], strategies)
        yield Solution(number, strategies, mixed, members.states.nash_conv(mixed))


def best_greedy_pair(members: Members) -> float:
    """Return the lowest NashConv of a pair of snapshots that play their likeliest actions, one in each seat."""
    states = members.states
    greedy = [np.eye(states.legal.shape[1])[members.policies[name].argmax(1)] for name in members.snapshots]
    return min(states.nash_conv(joined(states, list(pair))) for pair in product(greedy, repeat=2))


def uniform_policy(states: InformationStates) -> Array:
    """Return the policy [S, A] that chooses all legal actions with equal probabilities."""
    equal: Array = states.legal / states.legal.sum(1, keepdims=True)
    return equal


def joined(states: InformationStates, by_player: Sequence[Array]) -> Array:
    """Return the policy in which each player plays its own of `by_player`, each [S, A]."""
    return np.stack([by_player[player][row] for row, player in enumerate(states.players.tolist())])


def best_responses(states: InformationStates, policy: Array) -> list[Array]:
    """Return a pure best response [S, A] of each player; where it is never asked, its first action."""
    found = []
    for player in (0, 1):
        best = BestResponsePolicy(states._game, player, states._with(policy))
        actions = np.zeros(len(states.players), np.int64)
        for key in states._table.states_per_player[player]:
            actions[states._table.state_lookup[key]] = best.best_response_action(key)
        found.append(np.eye(states.legal.shape[1])[actions])
    return found


def double_oracle(states: InformationStates, solver: Solver) -> Iterator[tuple[float, float]]:
    """Yield NashConv and the first player's return for populations of 1, 2, ... members a player.

    Both players begin with the uniform policy; then each adds a best response to the other's meta-strategy.
    """
    population = [[uniform_policy(states)], [uniform_policy(states)]]
    for size in count(1):
        payoffs = np.zeros((2, size, size))
        for (i, row), (j, column) in product(enumerate(population[0]), enumerate(population[1])):
            payoffs[:, i, j] = states.returns(joined(states, [row, column]))
        mixed = states.mixture(population, solver(payoffs))
        yield states.nash_conv(mixed), float(states.returns(mixed)[0])
        for own, response in zip(population, best_responses(states, mixed), strict=True):
            own.append(response)
