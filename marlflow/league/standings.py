"""Standings of a league: one row for each member, with its rating, results and weight, best first; also as text.

A rating is one number, so it cannot show that three members beat each other in a cycle; their weights in a Nash
equilibrium or alpha-rank of the games that they have played can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.sentences import aligned, enumerated
from marlflow.league.alpharank import MOST_PROFILES, alpharank, alpharank_of_one_population, marginals
from marlflow.league.game_statistics import NO_WINNER
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.ratings import Rating, Ratings
from marlflow.league.solvers import nash

NASH, ALPHA_RANK = "nash", "alpha-rank"
_STANDARD_ERRORS = 3.0
_MOST_LEFT_OUT = 4
_MOST_MEMBERS = 500
"""The most members whose linear program is solved: it takes some seconds."""
_ENOUGH_MEMBERS = 8
"""Matches fill the payoffs among evenly spaced snapshots first, so this many members represent the whole run."""


@dataclass(frozen=True, slots=True)
class MetaWeights:
    """The weight of each member that has one, the method, and a note on missing games, if any."""

    method: str
    weights: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None


def meta_weights(members: Members, payoffs: Payoffs) -> MetaWeights:
    """Return the weight of each member in the game whose payoffs are its mean returns.

    If two roles are on two sides and all members can play both, members choose before seats are drawn, so that there
    is one distribution over all members. Otherwise each role has a distribution, and a member that plays several roles
    has the mean of its weights there. It is a Nash equilibrium if two roles' returns have a constant sum (within three
    standard errors), and else alpha-rank.
    Members that have not played all others are left out, and `note` says so. If fewer than eight and fewer than half
    are left, there are no weights, because weights among a few members say little about the league.
    """
    roles = range(len(members.sides.roles))
    by_role = [[name for name in members.names if members.plays(name, role)] for role in roles]
    if len(by_role) == len(members.sides.names) == 2 and by_role[0] == by_role[1]:
        return _of_one_population(by_role[0], payoffs)
    profiles = math.prod(len(names) for names in by_role)
    if profiles > MOST_PROFILES:
        why = f"{profiles:,} combinations of members are too many; the most are {MOST_PROFILES:,}"
        return MetaWeights(ALPHA_RANK, note=f"no {ALPHA_RANK}: {why}")
    return _of_roles(by_role, payoffs)


def _of_one_population(names: Sequence[str], payoffs: Payoffs) -> MetaWeights:
    # Mean returns of the row's member against the column's, which has each seat half of the time.
    own, errors = np.full((len(names), len(names)), np.nan), np.zeros((len(names), len(names)))
    # A member against itself gains nothing.
    np.fill_diagonal(own, 0.0)
    place_of = {name: place for place, name in enumerate(names)}
    for one, other in {(one, other) for _, one, _, other in payoffs.pairs if one < other}:
        (first, first_error), (second, second_error) = payoffs.returns((one, other)), payoffs.returns((other, one))
        at, to = place_of[one], place_of[other]
        own[at, to], own[to, at] = (first + second[::-1]) / 2
        # Where seats are interchangeable, both are of the same games.
        errors[at, to] = (
            np.hypot(*first_error) if payoffs.symmetric else np.linalg.norm([first_error, second_error]) / 2
        )
    missing = np.isnan(own)
    kept = _without_gaps(names, missing, payoffs)
    game, pairs_at = own[np.ix_(kept, kept)], np.triu_indices(len(kept), 1)
    is_constant = _is_constant((game + game.T)[pairs_at], (errors + errors.T)[np.ix_(kept, kept)][pairs_at])
    method = NASH if is_constant else ALPHA_RANK
    count, pairs = int(missing.sum()) // 2, len(names) * (len(names) - 1) // 2
    where = "" if payoffs.symmetric else " in both seatings"
    gaps = f"{count:,} of {pairs:,} pairs of members have no games{where}"
    if not _are_enough(len(kept), len(names)):
        return MetaWeights(method, note=f"no {method}: {gaps}")
    if len(kept) > _MOST_MEMBERS:
        why = f"{len(kept):,} members are too many; the most are {_MOST_MEMBERS:,}"
        return MetaWeights(method, note=f"no {method}: {why}")
    gain = game - game.T
    mixture = nash(np.stack([gain, -gain]) / 2)[0] if is_constant else alpharank_of_one_population(game)
    note = f"{method} is over {len(kept)} of {len(names)} members: {gaps}" if count else None
    return MetaWeights(method, {names[i]: float(w) for i, w in zip(kept, mixture, strict=True)}, note)


def _without_gaps(names: Sequence[str], missing: Array, payoffs: Payoffs) -> list[int]:
    """Remove the member with most missing pairs (and fewest games) until no pair is missing; return the others."""
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
    note = f"{method} leaves out {enumerated(left_out, _MOST_LEFT_OUT)}: {gaps}" if left_out else None
    return MetaWeights(method, {name: sum(weights) / len(weights) for name, weights in found.items()}, note)


def _roles_without_gaps(by_role: Sequence[Sequence[str]], missing: Array, payoffs: Payoffs) -> list[list[int]]:
    """Remove the member with the largest share of missing profiles until none is missing; return the others by role."""
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
    errors = np.array([[np.hypot(*payoffs.returns((one, other))[1]) for other in names[1]] for one in names[0]])
    sums = game[0] + game[1]
    return sums.size > 0 and _is_constant(sums, errors)


def _is_constant(sums: Array, errors: Array) -> bool:
    return not sums.size or bool(np.all(np.abs(sums - sums.mean()) <= _STANDARD_ERRORS * errors + 1e-9))


REFERENCE = "random"
"""The policy whose rating is shown as 0, if it is a member and has one."""
_UNKNOWN = "-"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """One member's row of the standings.

    `rating` is relative to the rating of `random` if that is known, and None without games. `win`, `draw` and `loss`
    are shares of the games against others, `scores` the shares won in each role with draws as half a win, empty if
    sides are interchangeable. All are None without games; older games of a live policy have less weight in them.
    `weight` is its weight in a Nash equilibrium or alpha-rank.
    """

    member: str
    policy: str
    rating: Rating | None
    games: int
    win: float | None
    draw: float | None
    loss: float | None
    scores: tuple[float | None, ...]
    weight: float | None
    since: str


@dataclass(frozen=True, slots=True)
class Standings:
    """All rows, best first, with the names of the roles of `scores` and of the method of `weight`.

    `is_relative`: whether ratings are relative to `random`. `notes` are sentences on members without a weight or a
    rating, and on ratings whose intervals overlap.
    """

    rows: tuple[Standing, ...]
    roles: tuple[str, ...]
    method: str
    is_relative: bool
    notes: tuple[str, ...] = ()


def standings(
    members: Members, payoffs: Payoffs, ratings: Ratings, versions: Mapping[str, int] | None = None
) -> Standings:
    """Return all members by rating, or without ratings by their share of won games.

    `payoffs` is the table of matches, or of training games if no matches were played; `versions` has the versions of
    live policies.

    >>> from marlflow.league.payoffs import Game
    >>> from marlflow.league.sides import default_sides
    >>> agents = ["player_0", "player_1"]
    >>> members = Members(default_sides(agents), {"main": agents, "random": agents}, live=["main"])
    >>> payoffs = Payoffs(members.sides, live=["main"])
    >>> payoffs.add(Game(("main", "random"), (1.0, -1.0), env_steps=9))
    >>> [(row.member, row.games, row.win) for row in standings(members, payoffs, Ratings(["main"])).rows]
    [('main', 1, 1.0), ('random', 1, 0.0)]
    """
    weights = meta_weights(members, payoffs)
    zero = ratings[REFERENCE].mu if REFERENCE in members.names and ratings[REFERENCE] != Rating() else None
    results, games = _results(payoffs), _games(payoffs)
    rows = []
    for name in members.names:
        by_role = [results.get((name, role), _NONE) for role in range(len(members.sides.roles))]
        win, draw, loss = _shares([sum(counts) for counts in zip(*by_role, strict=True)])
        rows.append(
            Standing(
                name,
                members.policy_of(name),
                # A snapshot begins with the rating of its policy, before it has played any game itself.
                _shown_rating(ratings[name], zero or 0.0) if name in games else None,
                games.get(name, 0),
                win,
                draw,
                loss,
                () if payoffs.symmetric else tuple(_score(counts) for counts in by_role),
                weights.weights.get(name),
                _since(members, name, versions or {}),
            )
        )
    titles = () if payoffs.symmetric else _role_titles(members)
    ranked = tuple(sorted(rows, key=_rank))
    outcomes = [pair.outcomes for pair in payoffs.pairs.values()]
    nobody_won = any(one.games for one in outcomes) and not any(one.wins or one.losses for one in outcomes)
    notes = tuple(filter(None, (weights.note, NO_WINNER if nobody_won else None, *_rating_notes(ranked))))
    return Standings(ranked, titles, weights.method, zero is not None, notes)


def _rating_notes(ranked: Sequence[Standing]) -> Iterator[str]:
    rated = [row for row in ranked if row.rating is not None]
    if not rated:
        return
    if without := [row.member for row in ranked if row.rating is None]:
        yield f"no rating: {_some(without)} played no games against others"
    first = rated[0].rating
    assert first is not None
    close = [
        row.member for row in rated[1:] if row.rating and row.rating.mu + row.rating.sigma > first.mu - first.sigma
    ]
    if close:
        yield f"the interval of {rated[0].member} overlaps with that of {_some(close)}: which is best is not known"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMED
    listed = [*names[:_MOST_NAMED], *([f"{rest} others" if rest > 1 else names[-1]] if rest > 0 else [])]
    return " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))


def _shown_rating(rating: Rating, zero: float) -> Rating | None:
    # After a game no rating is exactly the prior.
    return None if rating == Rating() else Rating(rating.mu - zero, rating.sigma)


_NONE = (0.0, 0.0, 0.0)
_Counts = Sequence[float]


def _results(payoffs: Payoffs) -> dict[tuple[str, int], _Counts]:
    """Return decayed wins, draws and losses of each member in each role."""
    found: dict[tuple[str, int], _Counts] = {}
    for (role, member, _, _), pair in payoffs.pairs.items():
        one = pair.outcomes
        wins, draws, losses = found.get((member, role), _NONE)
        found[member, role] = (
            wins + one.decayed_wins,
            draws + one.decayed_draws,
            losses + one.decayed_losses,
        )
    return found


def _games(payoffs: Payoffs) -> dict[str, int]:
    """Return the games of each member against others."""
    found: dict[str, int] = {}
    for profile, cell in payoffs.cells.items():
        if any(outcomes.games for outcomes in cell.pairs.values()):
            for member in set(profile):
                found[member] = found.get(member, 0) + cell.games
    return found


def _shares(counts: _Counts) -> tuple[float | None, float | None, float | None]:
    total = sum(counts)
    wins, draws, losses = counts
    return (wins / total, draws / total, losses / total) if total > 0 else (None, None, None)


def _score(counts: _Counts) -> float | None:
    win, draw, _ = _shares(counts)
    return None if win is None or draw is None else win + draw / 2


def _rank(row: Standing) -> tuple[bool, float, bool, float]:
    score = None if row.win is None or row.draw is None else row.win + row.draw / 2
    mu = None if row.rating is None else row.rating.mu
    return mu is None, -(mu or 0.0), score is None, -(score or 0.0)


def _role_titles(members: Members) -> tuple[str, ...]:
    sides = members.sides
    if len(sides.roles) == len(sides.names) and all(len(role.agents) == 1 for role in sides.roles):
        return tuple(f"seat {number}" for number, _ in enumerate(sides.roles, 1))
    return tuple(role.name for role in sides.roles)


def _since(members: Members, name: str, versions: Mapping[str, int]) -> str:
    if (snapshot := members.snapshots.get(name)) is not None:
        return f"{snapshot.agent_steps:,} agent steps, from {snapshot.policy}"
    if not members.is_live(name):
        return "never changes"
    version = [f"version {versions[name]:,}"] if name in versions else []
    resets = members.incarnations[name]
    return ", ".join(["live", *version, *([f"{resets} reset{'s' if resets > 1 else ''}"] if resets else [])])


def standings_text(shown: Standings, algorithms: Mapping[str, str] | None = None) -> str:
    """Return the rows as aligned text with a title line, and the notes below.

    `algorithms` has the algorithm of each policy; the column is left out without them.
    """
    named = algorithms or {}
    by = ["by"] if named else []
    titles = ["#", "member", *by, "rating", "games", "win", "draw", "loss", *shown.roles, shown.method, "since"]
    rows = [titles]
    for place, row in enumerate(shown.rows, 1):
        algorithm = [named.get(row.policy, _UNKNOWN)] if named else []
        shares = (row.win, row.draw, row.loss, *row.scores, row.weight)
        numbers = [_UNKNOWN if share is None else f"{share:.2f}" for share in shares]
        rating = _rating(row.rating, shown.is_relative)
        rows.append([str(place), row.member, *algorithm, rating, f"{row.games:,}", *numbers, row.since])
    numbers_at = {0, *range(3 if named else 2, len(titles) - 1)}
    return "\n".join(map(_printable, [*aligned(rows, right=numbers_at), *shown.notes]))


def _rating(rating: Rating | None, is_relative: bool) -> str:
    if rating is None:
        return _UNKNOWN
    return f"{rating.mu:+.1f}±{rating.sigma:.1f}" if is_relative else f"{rating.mu:.1f}±{rating.sigma:.1f}"


def _printable(line: str) -> str:
    # Names come from a file, and a terminal acts upon control characters.
    return "".join(character if character.isprintable() else "?" for character in line)
