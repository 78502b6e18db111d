"""Ratings of members by openskill's Plackett-Luce model, as Elo's for any number of sides and members on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from openskill.models import PlackettLuce

from marlflow.base.serialization import Tree
from marlflow.league.game_statistics import TIE_TOLERANCE

MU = 25.0
SIGMA = MU / 3


@dataclass(frozen=True, slots=True)
class Rating:
    """A member's strength: normally distributed with mean `mu` and standard deviation `sigma`."""

    mu: float = MU
    sigma: float = SIGMA


class Ratings:
    """The rating of each member, updated with each game (Weng and Lin, 2011, JMLR 12).

    A live member's rating becomes less certain by `tau` before each game, since its strength changes; a frozen member's
    does not.

    >>> ratings = Ratings(live=["main"])
    >>> ratings.add([["main"], ["random"]], scores=[1.0, -1.0])
    >>> ratings["main"].mu > ratings["random"].mu
    True
    """

    def __init__(self, live: Sequence[str] = (), beta: float = MU / 6, tau: float = MU / 300) -> None:
        self.live = set(live)
        self.tau = tau
        self._model = PlackettLuce(mu=MU, sigma=SIGMA, beta=beta, tau=0.0)
        self._ratings: dict[str, Rating] = {}

    def __getitem__(self, member: str) -> Rating:
        return self._ratings.get(member, Rating())

    def add(self, sides: Sequence[Sequence[str]], scores: Sequence[float]) -> None:
        """Count one game of `sides`, each with its members; equal scores are a tie.

        A side is as strong as the mean over its roles of their members' ratings, so that sides of one and of two roles
        that win equally often are rated equally. Sides that the same members play count as one, with the mean of their
        scores. A game with a member on two sides that differ in others, or on all sides, changes no rating.
        """
        scores_of: dict[tuple[str, ...], list[float]] = {}
        for side, score in zip(sides, scores, strict=True):
            scores_of.setdefault(tuple(side), []).append(score)
        members = [member for side in scores_of for member in set(side)]
        if len(scores_of) == 1 or len(set(members)) != len(members):
            return
        # openskill adds up a side's ratings, so each member enters with its share of the roles.
        shares = [{member: count / len(side) for member, count in Counter(side).items()} for side in scores_of]
        before = [[self._before(member, share) for member, share in of_side.items()] for of_side in shares]
        after = self._model.rate(before, ranks=_ranks([fmean(of_side) for of_side in scores_of.values()]))
        for of_side, rated in zip(shares, after, strict=True):
            for (member, share), rating in zip(of_side.items(), rated, strict=True):
                self._ratings[member] = Rating(float(rating.mu) / share, float(rating.sigma) / share)

    def _before(self, member: str, share: float) -> Any:
        rating = self[member]
        tau = self.tau if member in self.live else 0.0
        return self._model.rating(mu=rating.mu * share, sigma=(rating.sigma**2 + tau**2) ** 0.5 * share)

    def inherit(self, member: str, parent: str) -> None:
        """Give a new snapshot the rating of its parent."""
        self._ratings[member] = self[parent]

    def reset(self, member: str) -> None:
        """Give a member the rating of one that has not played."""
        self._ratings.pop(member, None)

    def state(self) -> Tree:
        """Return all ratings."""
        return {member: [rating.mu, rating.sigma] for member, rating in self._ratings.items()}

    def load_state(self, tree: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._ratings = {member: Rating(*map(float, values)) for member, values in tree.items()}


def _ranks(scores: Sequence[float]) -> list[float]:
    """Return ranks from 1, the best; equal scores have equal ranks."""
    return [1.0 + sum(other > score + TIE_TOLERANCE for other in scores) for score in scores]
