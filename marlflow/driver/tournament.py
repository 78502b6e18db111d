"""The episodes of an evaluation: the player of each agent, and the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from marlflow.base.errors import ConfigInvalid, InvalidInput, Problem
from marlflow.base.random import episode_seed, key
from marlflow.driver.entrants import Entrant, Entrants
from marlflow.league.comparison import ComparedGame, Comparison, PolicyReturns, comparison, policy_returns
from marlflow.league.payoffs import GameOutcome, scores_by
from marlflow.league.sides import Sides
from marlflow.policy.actor import AskedMode, EvaluationMode
from marlflow.runs.saved_runs import MIXTURE, RANDOM
from marlflow.runtime.spec import PolicySpec
from marlflow.sampling.episodes import EVALUATION
from marlflow.sampling.receipts import EpisodeResult

Pair = tuple[Entrant, Entrant]


@dataclass(frozen=True, slots=True)
class PlannedGame:
    """One episode to be played: its number, and the player of each agent.

    `member` plays `side`, and `opponent` all other sides. A team that plays alone has neither.
    """

    number: int
    member: str
    opponent: str
    side: int | None
    seating: Mapping[str, Entrant]

    def policy(self, agent: str) -> PolicySpec:
        """Return the policy that plays an agent."""
        return self.seating[agent].policies[agent]


@dataclass(frozen=True, slots=True)
class Tournament:
    """The episodes of pairs, or of one `team` that plays all agents, with environments seeded by `seed`.

    `outcome` decides who wins a pair's games; without it, the returns do.
    """

    sides: Sides | None
    pairs: Sequence[Pair]
    team: Entrant | None
    seed: int
    games: Sequence[PlannedGame]
    outcome: GameOutcome | None = None

    @property
    def worker_seed(self) -> int:
        """The seed of the workers, different from the seed of training."""
        return key(self.seed, *b"evaluate") >> 33

    @property
    def entrants(self) -> Mapping[str, Entrant]:
        """All entrants that may play, by label."""
        several = [whole for pair in self.pairs for whole in pair] + ([self.team] if self.team is not None else [])
        return {one.label: one for whole in several for one in (whole, *whole.everybody)}

    def modes(self, asked: AskedMode | None) -> dict[str, EvaluationMode]:
        """Return how each policy acts if all are asked to act like that, or each as its entrant."""
        seated = {
            game.policy(agent).name: (game.policy(agent), one)
            for game in self.games
            for agent, one in game.seating.items()
        }
        return {name: policy.mode(asked or one.mode) for name, (policy, one) in sorted(seated.items())}

    def acted(self, modes: Mapping[str, EvaluationMode]) -> dict[str, EvaluationMode]:
        """Return how players acted, by the names that reports show, of `modes` by policy."""
        found: dict[str, EvaluationMode] = {}
        for shown, policy in sorted(
            {(one.shown(a), one.policies[a].name) for g in self.games for a, one in g.seating.items()}
        ):
            # `random` has a policy for each kind of agent; it was sampled if one of them drew a random number.
            if policy in modes and found.get(shown) != "sampled":
                found[shown] = modes[policy]
        return found

    def played(self, results: Sequence[EpisodeResult]) -> list[ComparedGame]:
        """Return the episodes that were played, in order."""
        by_number = {result.episode: result for result in results}
        return [
            ComparedGame(
                game.member,
                game.opponent,
                game.side,
                episode_seed(self.worker_seed, EVALUATION, game.number),
                {agent: entrant.shown(agent) for agent, entrant in game.seating.items()},
                dict(result.returns),
                result.env_steps,
                result.fingerprint,
                {name: dict(by_agent) for name, by_agent in result.infos.items()},
                self._scores(result),
            )
            for game in self.games
            if (result := by_number.get(game.number)) is not None
        ]

    def _scores(self, result: EpisodeResult) -> Sequence[float] | None:
        return None if self.outcome is None or self.sides is None else scores_by(self.outcome, self.sides, result)

    def comparisons(self, played: Sequence[ComparedGame]) -> list[Comparison]:
        """Return the results of each pair."""
        if self.sides is None:
            return []
        asked: dict[tuple[str, str], int] = {}
        for game in self.games:
            asked[game.member, game.opponent] = asked.get((game.member, game.opponent), 0) + 1
        by_pair: dict[tuple[str, str], list[ComparedGame]] = {pair: [] for pair in asked}
        for one in played:
            by_pair[one.member, one.opponent].append(one)
        names = [(member.label, opponent.label) for member, opponent in self.pairs]
        return [comparison(self.sides, *pair, by_pair[pair], asked[pair]) for pair in names]

    def returns(self, played: Sequence[ComparedGame]) -> list[PolicyReturns]:
        """Return the results of each policy of a team."""
        return policy_returns(played, self.sides) if self.team is not None else []


def team_games(team: Entrant, agents: Sequence[str], episodes: int) -> list[PlannedGame]:
    """Plan the episodes of a team that plays all agents."""
    seating = dict.fromkeys(agents, team)
    return [PlannedGame(number, team.label, "", None, seating) for number in range(episodes)]


def pair_games(pairs: Sequence[Pair], sides: Sides, games: int, seed: int) -> Iterator[PlannedGame]:
    """Plan the games of each pair: the member plays each side that it can equally often."""
    number = 0
    for member, opponent in pairs:
        in_turn = _sides_in_turn(member, opponent, sides)
        for _ in range(-(-games // len(in_turn))):
            for side in in_turn:
                generator = np.random.default_rng(key(seed, *b"mixture", number))
                seating: dict[str, Entrant] = {}
                for index, role in enumerate(sides.roles):
                    drawn = (member if role.side == side else opponent).drawn(index, generator)
                    seating |= dict.fromkeys(role.agents, drawn)
                yield PlannedGame(number, member.label, opponent.label, side, seating)
                number += 1


def found_pairs(entrants: Entrants, members: Sequence[str], against: Sequence[str], sides: Sides) -> list[Pair]:
    """Return each of `members` with each of `against`; raises ConfigInvalid with every problem."""
    problems: list[Problem | str] = []
    found: dict[str, Entrant] = {}
    for name, labels in {"members": members, "against": against}.items():
        if not labels:
            problems.append(f"{name} is empty; name at least one, {RANDOM} or {MIXTURE} say")
        problems += [f"{name} has {one!r} more than once" for one in dict.fromkeys(labels) if labels.count(one) > 1]
    for label in dict.fromkeys([*members, *against]):
        try:
            found[label] = entrants.find(label)
        except InvalidInput as error:
            problems += error.problems
    pairs = [(found[one], found[other]) for one, other in product(members, against) if {one, other} <= found.keys()]
    problems += [problem for pair in pairs if (problem := _seating_problem(*pair, sides)) is not None]
    if problems:
        raise ConfigInvalid(list(dict.fromkeys(problems)))
    return pairs


def _seating_problem(member: Entrant, opponent: Entrant, sides: Sides) -> str | None:
    if _sides_in_turn(member, opponent, sides):
        return None
    return (
        f"{member.label!r} cannot be seated against {opponent.label!r}: one would have to play all agents of a side, "
        f"and the other all agents of all other sides; {member.label!r} can play {_playable(member)}, "
        f"{opponent.label!r} {_playable(opponent)}"
    )


def _playable(entrant: Entrant) -> str:
    return ", ".join(entrant.policies) or "no agent"


def _sides_in_turn(member: Entrant, opponent: Entrant, sides: Sides) -> list[int]:
    """Return the sides that `member` can play while `opponent` plays all others."""
    numbers = range(len(sides.names))
    agents = [[agent for role in sides.of_side(side) for agent in sides.roles[role].agents] for side in numbers]
    return [
        side
        for side in numbers
        if member.plays(agents[side])
        and all(opponent.plays(of_other) for other, of_other in enumerate(agents) if other != side)
    ]
