"""Matches: evaluation games between members of a league, for ratings, standings and meta-strategies.

Members play as they act, without exploration, so training games and matches have separate payoff tables. All games that
are due are one call of `Workers.evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from marlflow.base.serialization import Tree
from marlflow.batches.items import Weights
from marlflow.league.game_statistics import ProfileCell
from marlflow.league.payoffs import GameOutcome, Payoffs, Profile, game_of
from marlflow.league.ratings import Ratings
from marlflow.matchmaking.matchmakers import Matchmaker, count_matches, matches_of
from marlflow.policy.actor import EvaluationModes
from marlflow.sampling.protocol import EvaluationRequest, Workers
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Fault, MembersSent

FIRST_MATCH = 1 << 41
"""The number of the first match: a run's other evaluation episodes count from 0, so no match has the seeds of one."""

MOST_ATTEMPTS = 3
"""How often a game is requested if its environment breaks."""

_GAMES_BEFORE_SE = 20
"""Games of a profile before its standard error is used."""


def all_profiles(populations: Sequence[Sequence[str]]) -> list[Profile]:
    """Return each profile of one member for each role."""
    return list(product(*populations))


def until_known(
    profiles: Iterable[Profile], matches: Matches, games: int, payoff_se: float | None = None
) -> dict[Profile, int]:
    """Return how many games each profile should play next, until it has `games`; empty when none should.

    With `payoff_se`, a profile needs no more games once the standard error of each role's mean return is below it. The
    first games estimate the standard error, so call this again after them. Lost games count as played. Profiles that
    differ only in the order of interchangeable sides share their `games`, and play equally often.
    """
    orders: dict[Profile, list[Profile]] = {}
    for profile in profiles:
        orders.setdefault(matches.payoffs.key(profile), []).append(profile)
    counts: dict[Profile, int] = {}
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


class Matches:
    """Numbers the games that are requested, and counts each exactly once.

        matches.request({("main", "main@1"): 20})
        while (games := matches.due()) is not None:
            matches.observe(await workers.evaluate(replace(games, weights=weights)))

    `payoffs` and `ratings` are updated. Missing games are requested again, at most twice; `lost` has the number of
    games per profile that never finished. `outcome` decides who wins; without it, the returns do. `modes` is how
    members act: `sampled` draws from the learned distribution, or acts greedily if there is none, as in value-based
    algorithms.
    """

    def __init__(
        self, payoffs: Payoffs, ratings: Ratings, modes: EvaluationModes = "sampled", outcome: GameOutcome | None = None
    ) -> None:
        self.payoffs, self.ratings, self.modes, self._outcome = payoffs, ratings, modes, outcome
        self.lost: dict[Profile, int] = {}
        self.sent = MembersSent()
        self._next = 0
        # The requested games without a result, by number, and how often they have been requested.
        self._pending: dict[int, Profile] = {}
        self._attempts = 0

    @property
    def games(self) -> int:
        """The number of games requested so far."""
        return self._next

    def request(self, counts: Mapping[Profile, int]) -> None:
        """Request games of each profile; raises RuntimeError while earlier games have not been played."""
        if self._pending:
            raise RuntimeError("matches are asked for while earlier ones are not played")
        for profile, count in counts.items():
            for number in range(self._next, self._next + count):
                self._pending[FIRST_MATCH + number] = profile
            self._next += count
        self._attempts = 0

    def due(self) -> EvaluationRequest | None:
        """Return the games that have not been played yet, without weights; None if all have."""
        if not self._pending:
            return None
        # One matchup per profile, so that a batch is small when it is sent.
        matchups = {profile: self.payoffs.sides.matchup(profile) for profile in set(self._pending.values())}
        seated = [matchups[profile] for profile in self._pending.values()]
        return EvaluationRequest(tuple(self._pending), matchups=seated, mode=self.modes)

    def observe(self, evaluated: Evaluated) -> None:
        """Count the games of a batch, each at most once, and the snapshots `sent` for it.

        If the run's deadline ended the batch, no game is counted, because short games would be counted more often.
        """
        self.sent += evaluated.sent
        if evaluated.was_cut:
            self._pending.clear()
            return
        by_profile: dict[Profile, list[EpisodeResult]] = {}
        for result in sorted(evaluated.episodes, key=lambda one: one.episode):
            if (profile := self._pending.pop(result.episode, None)) is not None:
                by_profile.setdefault(profile, []).append(result)
        for profile, result in _mixed(by_profile):
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
        """Reset a live member's games and rating; its games that are being played will not count."""
        self._pending = {number: profile for number, profile in self._pending.items() if member not in profile}
        self.payoffs.reset(member, incarnation)
        self.ratings.reset(member)
        self.lost = {profile: count for profile, count in self.lost.items() if member not in profile}

    def state(self) -> Tree:
        """Return all counts except the ratings; there are no pending games between rounds."""
        lost = [[list(profile), count] for profile, count in self.lost.items()]
        sent = [self.sent.members, self.sent.size_bytes, self.sent.hits]
        return {"payoffs": self.payoffs.state(), "next": self._next, "lost": lost, "sent": sent}

    def load_state(self, tree: Any) -> None:
        """Restore what `state` returned."""
        self.payoffs.load_state(tree["payoffs"])
        self._next = tree["next"]
        self.sent = MembersSent(*tree["sent"])
        self.lost = {tuple(profile): count for profile, count in tree["lost"]}
        self._pending = {}


def _mixed(by_profile: Mapping[Profile, Sequence[EpisodeResult]]) -> list[tuple[Profile, EpisodeResult]]:
    """Return all games, with the games of each profile evenly spread.

    A rating follows the latest games most: in a row, games of one seating would favor whoever had the better seat.
    """
    placed = [
        ((place + 0.5) / len(results), profile, result)
        for profile, results in by_profile.items()
        for place, result in enumerate(results)
    ]
    return [(profile, result) for _, profile, result in sorted(placed, key=lambda one: one[0])]


async def play_matches(matchmaker: Matchmaker, workers: Workers, weights: Mapping[str, Weights]) -> tuple[Fault, ...]:
    """Play the matches that are due, between two rounds, by the published `weights`; return faults.

    `workers` know the frozen entries, as DealtWorkers do. Ends early if the run's deadline passes.
    """
    faults: list[Fault] = []
    while (games := matches_of(matchmaker)) is not None:
        evaluated = await workers.evaluate(replace(games, weights=weights))
        faults += evaluated.faults
        count_matches(matchmaker, evaluated)
        if evaluated.was_cut:
            break
    return tuple(faults)
