"""The weight of each member in a Nash equilibrium or alpha-rank of the games that the members have played.

A rating is one number, so it cannot show that three members beat each other in a cycle; these weights can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from marlflow.base.arrays import Array
from marlflow.league.alpharank import MOST_PROFILES, alpharank, marginals
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.solvers import nash

NASH, ALPHA_RANK = "nash", "alpha-rank"
_STANDARD_ERRORS = 3.0
_MOST_NAMED = 4
_MOST_MEMBERS = 500
"""The most members whose linear program is solved: it takes some seconds."""
_ENOUGH_MEMBERS = 8
"""Matches make the payoffs among evenly spaced snapshots known first, so this many stand for the whole run."""


@dataclass(frozen=True, slots=True)
class MetaWeights:
    """The weight of each member that has one, the method, and a note on missing games, if any."""

    method: str
    weights: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None


def meta_weights(members: Members, payoffs: Payoffs) -> MetaWeights:
    """Return the weight of each member in the game whose payoffs are its mean returns.

    If two roles are on two sides and all members can play both, members choose before seats are drawn: that is a
    symmetric zero-sum game of return differences, and its Nash equilibrium is one distribution over all members.
    Otherwise each role has a distribution, by a Nash equilibrium if two roles' returns have a constant sum (within
    three standard errors) and else by alpha-rank; a member that plays several roles has the mean of its weights there.
    Members that have not played all others are left out, and `note` says so. If fewer than eight and fewer than half
    are left, there are no weights, because weights among a few members say little about the league.
    """
    roles = range(len(members.sides.roles))
    by_role = [[name for name in members.names if members.plays(name, role)] for role in roles]
    if len(by_role) == len(members.sides.names) == 2 and by_role[0] == by_role[1]:
        return _of_one_population(by_role[0], payoffs)
    profiles = int(np.prod([len(names) for names in by_role]))
    if profiles > MOST_PROFILES:
        why = f"{profiles:,} combinations of members are too many; the most are {MOST_PROFILES:,}"
        return MetaWeights(ALPHA_RANK, note=f"no {ALPHA_RANK}: {why}")
    return _of_roles(by_role, payoffs)


def _of_one_population(names: Sequence[str], payoffs: Payoffs) -> MetaWeights:
    values = np.full((len(names), len(names)), np.nan)
    np.fill_diagonal(values, 0.0)
    place_of = {name: place for place, name in enumerate(names)}
    for one, other in {(one, other) for _, one, _, other in payoffs.pairs if one < other}:
        first, _ = payoffs.returns((one, other))
        second, _ = payoffs.returns((other, one))
        # Each member has each seat half of the time; a member against itself gains nothing.
        gain = (first[0] - first[1] + second[1] - second[0]) / 4
        values[place_of[one], place_of[other]], values[place_of[other], place_of[one]] = gain, -gain
    missing = np.isnan(values)
    kept = _without_gaps(names, missing, payoffs)
    count, pairs = int(missing.sum()) // 2, len(names) * (len(names) - 1) // 2
    where = "" if payoffs.symmetric else " in both seatings"
    gaps = f"{count:,} of {pairs:,} pairs of members have no games{where}"
    if not _are_enough(len(kept), len(names)):
        return MetaWeights(NASH, note=f"no {NASH}: {gaps}")
    if len(kept) > _MOST_MEMBERS:
        return MetaWeights(NASH, note=f"no {NASH}: {len(kept):,} members are too many; the most are {_MOST_MEMBERS:,}")
    game = values[np.ix_(kept, kept)]
    mixture = nash(np.stack([game, -game]))[0]
    note = f"{NASH} is over {len(kept)} of {len(names)} members: {gaps}" if count else None
    return MetaWeights(NASH, {names[i]: float(w) for i, w in zip(kept, mixture, strict=True)}, note)


def _without_gaps(names: Sequence[str], missing: Array, payoffs: Payoffs) -> list[int]:
    """Return the remaining members once those with most missing pairs, then fewest games, are removed."""
    games_by_name = _games_of(payoffs)
    games = np.array([games_by_name.get(name, 0) for name in names])
    gaps, is_kept = missing.sum(axis=1), np.ones(len(names), bool)
    while gaps.any():
        # The last key is the first to sort by.
        worst = np.lexsort((games, -gaps))[0]
        is_kept[worst] = False
        gaps = np.where(is_kept, gaps - missing[:, worst], 0)
    return [int(place) for place in np.flatnonzero(is_kept)]


def _are_enough(kept: int, members: int) -> bool:
    return kept >= min(_ENOUGH_MEMBERS, max(min(2, members), members / 2)) > 0


def _of_roles(by_role: Sequence[Sequence[str]], payoffs: Payoffs) -> MetaWeights:
    values = payoffs.matrices(by_role)
    missing = np.isnan(values[0])
    kept = _roles_without_gaps(by_role, missing, payoffs)
    names = [[by_role[role][i] for i in places] for role, places in enumerate(kept)]
    game = np.stack([values_of_role[np.ix_(*kept)] for values_of_role in values])
    is_nash = len(names) == 2 and payoffs.sides.roles[0].side != payoffs.sides.roles[1].side
    method = NASH if is_nash and _has_constant_sum(names, game, payoffs) else ALPHA_RANK
    gaps = f"{int(missing.sum()):,} of {missing.size:,} combinations of members have no games"
    if not all(_are_enough(len(left), len(all_)) for left, all_ in zip(names, by_role, strict=True)):
        return MetaWeights(method, note=f"no {method}: {gaps}")
    mixtures = nash(game) if method == NASH else marginals(alpharank(game))
    found: dict[str, list[float]] = {}
    for left, mixture in zip(names, mixtures, strict=True):
        for name, weight in zip(left, mixture, strict=True):
            found.setdefault(name, []).append(float(weight))
    left_out = [
        f"{name} as {role.name}"
        for role, left, all_ in zip(payoffs.sides.roles, names, by_role, strict=True)
        for name in all_
        if name not in left
    ]
    more = f" and {len(left_out) - _MOST_NAMED:,} more" if len(left_out) > _MOST_NAMED else ""
    note = f"{method} leaves out {', '.join(left_out[:_MOST_NAMED])}{more}: {gaps}" if left_out else None
    return MetaWeights(method, {name: sum(weights) / len(weights) for name, weights in found.items()}, note)


def _roles_without_gaps(by_role: Sequence[Sequence[str]], missing: Array, payoffs: Payoffs) -> list[list[int]]:
    """Return the members of each role that are left if those with the largest share of missing profiles go first."""
    games = _games_of(payoffs)
    kept = [list(range(len(names))) for names in by_role]
    while all(kept) and (left := missing[np.ix_(*kept)]).any():
        axes = range(left.ndim)
        shares = [left.mean(axis=tuple(axis for axis in axes if axis != role)) for role in axes]
        candidates = [(role, place) for role in axes for place in range(len(kept[role]))]
        role, place = max(
            candidates, key=lambda at: (shares[at[0]][at[1]], -games.get(by_role[at[0]][kept[at[0]][at[1]]], 0))
        )
        del kept[role][place]
    return kept


def _games_of(payoffs: Payoffs) -> dict[str, int]:
    games: dict[str, int] = {}
    for profile, cell in payoffs.cells.items():
        for member in set(profile):
            games[member] = games.get(member, 0) + cell.games
    return games


def _has_constant_sum(names: Sequence[Sequence[str]], game: Array, payoffs: Payoffs) -> bool:
    """Return whether the sums of two roles' returns differ by no more than their errors explain."""
    sums = game[0] + game[1]
    errors = np.array([[np.hypot(*payoffs.returns((one, other))[1]) for other in names[1]] for one in names[0]])
    return bool(np.all(np.abs(sums - sums.mean()) <= _STANDARD_ERRORS * errors + 1e-9)) if sums.size else False
