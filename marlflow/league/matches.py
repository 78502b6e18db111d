"""Matches: evaluation games between members of a league, for ratings, standings and meta-strategies.

Members play as they act, without exploration, so training games and matches have separate payoff tables. All games that
are due are one call of `Workers.evaluate`.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal, Protocol, runtime_checkable

from marlflow.base.items import Weights
from marlflow.base.serialization import Tree
from marlflow.league.game_statistics import ProfileCell
from marlflow.league.members import Members
from marlflow.league.outcomes import Outcome
from marlflow.league.payoffs import Payoffs, Profile, game_of
from marlflow.league.ratings import Ratings
from marlflow.policy.actor import EvaluationModes
from marlflow.sampling.protocol import Matchup, Workers
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Fault

FIRST_MATCH = 1 << 41
"""The number of the first match: a run's other evaluation episodes count from 0, so no match has the seeds of one."""

MOST_ATTEMPTS = 3
"""How often a game is asked for whose environment breaks."""

_GAMES_BEFORE_SE = 20
"""Games of a profile before its standard error is used."""


def pairings(members: Members, pairs: Literal["live", "all"] = "live", mirrored: bool = True) -> list[list[Profile]]:
    """Return the seatings of each pair of members: one of them plays one side, the other one all other sides.

    A role that a member cannot play is played by the first live policy that can, else by one that never changes. A
    pair that cannot be seated against each other is left out; with `mirrored` false each has its first seating only.
    """
    fixed = (name for role in range(len(members.sides.roles)) for name in members.fixed_in(role))
    everybody = list(dict.fromkeys([*members.incarnations, *members.snapshots, *fixed]))
    found = []
    for one, other in combinations(everybody, 2):
        if pairs == "live" and not (members.is_live(one) or members.is_live(other)):
            continue
        seatings = list(dict.fromkeys(_seatings(members, one, other)))
        if seatings:
            found.append(seatings if mirrored else seatings[:1])
    return found


def _seatings(members: Members, one: str, other: str) -> Iterable[Profile]:
    sides = members.sides
    for side in range(len(sides.names)):
        for alone, against in ((one, other), (other, one)):
            names = [alone if role.side == side else against for role in sides.roles]
            if not all(_has_a_role(members, names, name) for name in (alone, against)):
                continue
            fitting = [_fitting(members, name, number) for number, name in enumerate(names)]
            profile = tuple(name for name in fitting if name is not None)
            if len(profile) == len(names):
                yield profile


def _has_a_role(members: Members, names: Sequence[str], member: str) -> bool:
    return any(name == member and members.plays(name, number) for number, name in enumerate(names))


def _fitting(members: Members, name: str, role: int) -> str | None:
    if members.plays(name, role):
        return name
    return next(iter([*members.live_in(role), *members.fixed_in(role)]), None)


def fewest_first(groups: Sequence[Sequence[Profile]], payoffs: Payoffs, games: int) -> dict[Profile, int]:
    """Return how many of at most `games` games each profile plays, so that their numbers of games become equal.

    The profiles of a group play equally often. A group whose profiles no longer fit into the rest of `games` waits.
    Games of interchangeable sides count for all their orders.

    >>> from marlflow.league.sides import default_sides
    >>> payoffs = Payoffs(default_sides(["player_0", "player_1"]))
    >>> fewest_first([[("main", "main@1"), ("main@1", "main")], [("main", "main@2")]], payoffs, games=5)
    {('main', 'main@1'): 2, ('main@1', 'main'): 2, ('main', 'main@2'): 1}
    """
    counts = {profile: 0 for group in groups for profile in group}
    played = [_fewest_games(payoffs, group) for group in groups]
    heap = [(count, number) for number, count in enumerate(played)]
    heapq.heapify(heap)
    while heap and games > 0:
        count, number = heapq.heappop(heap)
        if len(groups[number]) > games:
            continue
        for profile in groups[number]:
            counts[profile] += 1
        games -= len(groups[number])
        heapq.heappush(heap, (count + 1, number))
    return {profile: count for profile, count in counts.items() if count}


def _fewest_games(payoffs: Payoffs, group: Sequence[Profile]) -> int:
    """Return the fewest games of a profile of `group`, each with an equal part of those of a cell that they share."""
    sharing = Counter(map(payoffs.key, group))
    return min(_games(payoffs, profile) // sharing[payoffs.key(profile)] for profile in group)


def all_profiles(populations: Sequence[Sequence[str]]) -> list[Profile]:
    """Return each profile of one member for each role."""
    return list(product(*populations))


def until_known(
    profiles: Iterable[Profile], matches: Matches, games: int, payoff_se: float | None = None
) -> dict[Profile, int]:
    """Return how many games each profile should play next, until it has `games`; empty when none should.

    With `payoff_se`, a profile needs no more once the standard error of each role's mean return is below it. The first
    games estimate it, so ask again after these. Games that were lost count as played. Profiles that are orders of
    interchangeable sides have these games together, and play equally often.
    """
    orders: dict[Profile, list[Profile]] = {}
    for profile in profiles:
        orders.setdefault(matches.payoffs.key(profile), []).append(profile)
    counts = {}
    for same in orders.values():
        lost = sum(matches.lost.get(profile, 0) for profile in same)
        wanted = _games_wanted(matches.payoffs.cell(same[0]), lost, games, payoff_se)
        counts |= dict.fromkeys(same, math.ceil(wanted / len(same)))
    return {profile: count for profile, count in counts.items() if count}


def _games_wanted(cell: ProfileCell | None, lost: int, games: int, payoff_se: float | None) -> int:
    played = 0 if cell is None else cell.games
    wanted = games
    if payoff_se is not None:
        wanted = min(games, _GAMES_BEFORE_SE)
        if cell is not None and played >= 2 and played + lost >= wanted:
            error = max(role.standard_error for role in cell.roles)
            # The standard error falls with the square root of the number of games.
            needed = played + lost + 1 if error > payoff_se else 0
            wanted = min(games, max(needed, math.ceil(played * (error / payoff_se) ** 2)))
    return max(0, wanted - played - lost)


def _games(payoffs: Payoffs, profile: Profile) -> int:
    cell = payoffs.cell(profile)
    return 0 if cell is None else cell.games


@dataclass(frozen=True, slots=True)
class MatchBatch:
    """Games to play in one call of `Workers.evaluate`."""

    episodes: Sequence[int]
    matchups: Sequence[Matchup]
    modes: EvaluationModes


class Matches:
    """Numbers the games that are asked for, and counts each exactly once, in order of number.

        matches.request({("main", "main@1"): 20})
        while (batch := matches.due()) is not None:
            matches.observe(await workers.evaluate(batch.episodes, weights, batch.matchups, batch.modes))

    `payoffs` and `ratings` are updated. Missing games are asked for again, at most twice; `lost` has the games of each
    profile that were given up. `outcome` decides who wins, else the returns do. `modes` is how members act: `sampled`
    is as their algorithm means it, from the learned distribution, or greedily where there is none, as in value-based
    algorithms.
    """

    def __init__(
        self, payoffs: Payoffs, ratings: Ratings, modes: EvaluationModes = "sampled", outcome: Outcome | None = None
    ) -> None:
        self.payoffs, self.ratings, self.modes, self._outcome = payoffs, ratings, modes, outcome
        self.lost: dict[Profile, int] = {}
        self._next = 0
        # The games that are asked for, by number, and how often they were.
        self._pending: dict[int, Profile] = {}
        self._attempts = 0

    @property
    def games(self) -> int:
        """The number of games asked for so far."""
        return self._next

    def request(self, counts: Mapping[Profile, int]) -> None:
        """Ask for games of each profile; raises RuntimeError while earlier ones are not played."""
        if self._pending:
            raise RuntimeError("matches are asked for while earlier ones are not played")
        for profile, count in counts.items():
            for number in range(self._next, self._next + count):
                self._pending[FIRST_MATCH + number] = profile
            self._next += count
        self._attempts = 0

    def due(self) -> MatchBatch | None:
        """Return the games that are not played yet; None if all are."""
        if not self._pending:
            return None
        # One matchup per profile, so that a batch is small when it is sent.
        matchups = {profile: self.payoffs.sides.matchup(profile) for profile in set(self._pending.values())}
        return MatchBatch(tuple(self._pending), [matchups[profile] for profile in self._pending.values()], self.modes)

    def observe(self, evaluated: Evaluated) -> None:
        """Count the games of a batch, each at most once.

        If the run's deadline ended the batch, none is counted, because short games would be counted more often.
        """
        if evaluated.was_cut:
            self._pending.clear()
            return
        for result in sorted(evaluated.episodes, key=lambda one: one.episode):
            if (profile := self._pending.pop(result.episode, None)) is not None:
                self._count(profile, result)
        self._attempts += 1
        if self._attempts == MOST_ATTEMPTS:
            for profile in self._pending.values():
                self.lost[profile] = self.lost.get(profile, 0) + 1
            self._pending.clear()

    def _count(self, profile: Profile, result: EpisodeResult) -> None:
        sides = self.payoffs.sides
        game = game_of(sides, profile, result, self._outcome)
        self.payoffs.add(game)
        roles_of = [sides.of_side(side) for side in range(len(sides.names))]
        self.ratings.add([[profile[role] for role in roles] for roles in roles_of], game.side_scores(sides))

    def reset(self, member: str, incarnation: int) -> None:
        """Let a live member begin without games and with a new rating."""
        self.payoffs.reset(member, incarnation)
        self.ratings.reset(member)
        self.lost = {profile: count for profile, count in self.lost.items() if member not in profile}

    def state(self) -> Tree:
        """Return all counts except the ratings; there are no pending games between rounds."""
        lost = [[list(profile), count] for profile, count in self.lost.items()]
        return {"payoffs": self.payoffs.state(), "next": self._next, "lost": lost}

    def load_state(self, tree: Any) -> None:
        """Restore what `state` returned."""
        self.payoffs.load_state(tree["payoffs"])
        self._next = tree["next"]
        self.lost = {tuple(profile): count for profile, count in tree["lost"]}
        self._pending = {}


@runtime_checkable
class MatchingMatchmaker(Protocol):
    """A matchmaker that wants matches played between rounds."""

    def matches_due(self) -> MatchBatch | None:
        """Return the games to play now; None if there are none."""
        ...

    def observe_matches(self, evaluated: Evaluated) -> None:
        """Count the results of the games that `matches_due` returned."""
        ...


async def play_matches(
    matchmaker: MatchingMatchmaker, workers: Workers, weights: Mapping[str, Weights]
) -> tuple[Fault, ...]:
    """Play the matches that are due, between two rounds, by the published `weights`; return faults.

    `workers` know the frozen entries, as DealtWorkers do. Ends early if the run's deadline passes.
    """
    faults: list[Fault] = []
    while (batch := matchmaker.matches_due()) is not None:
        evaluated = await workers.evaluate(batch.episodes, weights, batch.matchups, batch.modes)
        faults += evaluated.faults
        matchmaker.observe_matches(evaluated)
        if evaluated.was_cut:
            break
    return tuple(faults)
