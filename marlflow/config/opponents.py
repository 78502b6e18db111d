"""Pair the policies with the opponents of `evaluation.opponents`, in every seat.

A policy keeps its agents of training, and an opponent takes all others. In self-play, the policy plays one side at a
time: one group of agents, or one agent of a single group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from marlflow.algorithms.from_run import Imported
from marlflow.algorithms.scripted import Random
from marlflow.base.errors import ConfigInvalid, Problem, Problems
from marlflow.base.sentences import meant
from marlflow.base.spaces import Spaces
from marlflow.config.experiment import Experiment, Policy
from marlflow.config.imported_policies import unfit_problem
from marlflow.runs.saved_runs import RANDOM
from marlflow.runtime.spec import PolicySpec
from marlflow.sampling.mapping import group
from marlflow.sampling.protocol import Matchup

_KEY = "evaluation.opponents"


@dataclass(frozen=True, slots=True)
class Pairing:
    """Hold one policy, its opponent, and their `matchup`."""

    policy: str
    opponent: str
    matchup: Matchup


@dataclass(frozen=True, slots=True)
class Pairings:
    """Hold the pairings of each policy, and `opponents` from outside the run; empty: play as in training."""

    of: Mapping[str, Sequence[Pairing]] = field(default_factory=dict)
    opponents: Mapping[str, PolicySpec] = field(default_factory=dict)

    def dealt(self, episodes: int) -> list[Pairing]:
        """Return at least `episodes` pairings for each policy, rounded up to equally many of each."""
        return [
            pairing
            for pairings in self.of.values()
            for _ in range(ceil(episodes / len(pairings)))
            for pairing in pairings
        ]


def only_opponents(experiment: Experiment) -> set[str]:
    """Return the policies that need no agents in training: opponents that do not learn."""
    opponents = set(experiment.evaluation.opponents or ())
    return {
        name
        for name, policy in experiment.policies.items()
        if name in opponents and not policy.acts_by.capabilities.learns
    }


def sides_in_turn(playable: Sequence[str], agents: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sides that a policy takes in turn; it can play `playable` of `agents`.

    >>> sides_in_turn(["wolf_0", "wolf_1"], ["wolf_0", "wolf_1", "hare_0"])
    [('wolf_0', 'wolf_1')]
    >>> sides_in_turn(["player_0", "player_1"], ["player_0", "player_1"])
    [('player_0',), ('player_1',)]
    """
    # A policy that does not play every agent keeps its side.
    if len(playable) < len(agents):
        return [tuple(playable)]
    groups: dict[str, list[str]] = {}
    for agent in agents:
        groups.setdefault(group(agent), []).append(agent)
    return [tuple(side) for side in groups.values()] if len(groups) > 1 else [(agent,) for agent in agents]


def pairings_of(
    experiment: Experiment,
    seats: Mapping[str, Spaces] | None,
    policies: Mapping[str, tuple[Policy, Spaces]],
    players: Mapping[str, Sequence[str]],
    problems: Problems,
) -> Pairings:
    """Return the pairings of an experiment; append to `problems` what prevents them.

    `seats` has each agent's spaces, None if undeclared; `players` the agents that each policy can play.
    """
    if (names := experiment.evaluation.opponents) is None:
        return Pairings()
    if wrong := list(_names_problems(names, [*policies, *experiment.policies, RANDOM])):
        problems += wrong
        return Pairings()
    if seats is None:
        problems.append(
            f"{_KEY}: the environment does not declare its agents, so their seats cannot be given to opponents; "
            f"declare possible_agents, or set {_KEY}=null"
        )
        return Pairings()
    table = _OpponentSeating(experiment, seats, policies)
    pairings_by_policy: dict[str, list[Pairing]] = {}
    learning = [name for name, (policy, _) in policies.items() if policy.acts_by.capabilities.learns]
    for name in learning:
        if sides := [side for side in sides_in_turn(players[name], tuple(seats)) if len(side) < len(seats)]:
            against = [opponent for opponent in names if opponent != name]
            pairings_by_policy[name] = [table.pairing(name, opponent, side) for opponent in against for side in sides]
        else:
            problems.append(f"{_KEY}: policy {name!r} plays the only agent, so no seat is left; set {_KEY}=null")
    problems += dict.fromkeys(table.problems)
    problems += _too_few(experiment, pairings_by_policy)
    if pairings_by_policy and not any(pairings_by_policy.values()):
        problems.append(f"{_KEY}: {learning[0]!r} alone learns, and is not evaluated against itself; add {RANDOM!r}")
    return Pairings({name: pairings for name, pairings in pairings_by_policy.items() if pairings}, table.opponents)


def _names_problems(names: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    if not names:
        yield f"{_KEY} is empty; name opponents, e.g. [{RANDOM}], or set it to null"
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"{_KEY}: there is no policy {name!r}{meant(name, list(dict.fromkeys(known)), 'there are')}"
        if list(names).count(name) > 1:
            yield f"{_KEY} has {name!r} more than once; name each opponent once"


def _too_few(experiment: Experiment, pairings_by_policy: Mapping[str, Sequence[Pairing]]) -> Iterator[str]:
    settings, most = experiment.evaluation, max(map(len, pairings_by_policy.values()), default=0)
    for key, episodes in {"episodes": settings.episodes, "final_episodes": settings.final_episodes}.items():
        if episodes and episodes < most:
            yield (
                f"evaluation.{key}={episodes} is less than the {most} pairings of a policy with its opponents, in each "
                f"of its seats; set it to {most} or more, or to 0"
            )


class _OpponentSeating:
    """Seat opponents: policies of the run, or ones made for their seat."""

    def __init__(
        self, experiment: Experiment, seats: Mapping[str, Spaces], policies: Mapping[str, tuple[Policy, Spaces]]
    ) -> None:
        self._experiment = experiment
        self._seats = seats
        self._policies = policies
        self.opponents: dict[str, PolicySpec] = {}
        self.problems: Problems = []

    def pairing(self, policy: str, opponent: str, side: Sequence[str]) -> Pairing:
        matchup = {agent: policy if agent in side else self._seated(opponent, agent) for agent in self._seats}
        return Pairing(policy, opponent, matchup)

    def _seated(self, opponent: str, agent: str) -> str:
        seat = self._seats[agent]
        if opponent not in self._policies:
            return self._made_for(opponent, agent)
        spaces = self._policies[opponent][1]
        if (spaces.observation, spaces.action) != (seat.observation, seat.action) or spaces.masked < seat.masked:
            self.problems.append(
                f"{_KEY}: policy {opponent!r} cannot take the seat of agent {agent!r}: it was made for "
                f"{spaces.observation} and {spaces.action}, and {agent!r} has {seat.observation} and {seat.action}; "
                f"name one that can, e.g. {RANDOM}"
            )
        return opponent

    def _made_for(self, opponent: str, agent: str) -> str:
        seat = self._seats[agent]
        # Seats with equal spaces share one policy, named after the first of them.
        first = next(other for other, spaces in self._seats.items() if spaces == seat)
        # Names of policies have no slash, so this one is unique.
        name = f"{opponent}/{first}"
        if name not in self.opponents:
            policy = self._experiment.policies.get(opponent, Policy(Random()))
            spec = PolicySpec(name, policy.acts_by, policy.model, seat, self._experiment.seed)
            self.problems += [f"{_KEY}: {opponent} as agent {first!r}: {problem}" for problem in _unfit(spec)]
            self.opponents[name] = spec
        return name


def _unfit(spec: PolicySpec) -> Sequence[Problem | str]:
    if isinstance(spec.algorithm, Imported):
        policy = Policy(spec.algorithm, spec.model)
        if problem := unfit_problem(spec.algorithm, policy, spec.spaces, spec.name.partition("/")[2]):
            return [problem]
    if problems := [*spec.algorithm.validate(spec.spaces, spec.model), *spec.spaces.problems()]:
        return problems
    try:
        spec.actor()
    except ConfigInvalid as error:
        return error.problems
    return ()
