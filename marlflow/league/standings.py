"""Standings of a league: one row for each member, with its rating, results and weight, best first; also as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from marlflow.league.game_statistics import NO_WINNER
from marlflow.league.members import Members
from marlflow.league.meta_weights import meta_weights
from marlflow.league.payoffs import Payoffs
from marlflow.league.ratings import Rating, Ratings

REFERENCE = "random"
"""The policy whose rating is shown as 0, if it is a member and has one."""
_UNKNOWN = "-"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """One member.

    `rating` is relative to that of `random` if that is known, and None without games. `win`, `draw` and `loss` are
    shares of the games against others, `scores` the shares won in each role with draws as half a win, empty if sides
    are interchangeable; all are None without games, and those of a live member are decayed. `weight` is its weight in a
    Nash equilibrium or alpha-rank.
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

    `payoffs` is the table of matches, or of training games if none were played; `versions` has those of live policies.

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
                # A snapshot begins with the rating of its policy, which none of its own games has confirmed.
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
        numbers = [_share(value) for value in (row.win, row.draw, row.loss, *row.scores, row.weight)]
        rating = _rating(row.rating, shown.is_relative)
        rows.append([str(place), row.member, *algorithm, rating, f"{row.games:,}", *numbers, row.since])
    texts = {1, 2, len(titles) - 1} if named else {1, len(titles) - 1}
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if at in texts else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(map(_printable, [*lines, *shown.notes]))


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f}"


def _rating(rating: Rating | None, is_relative: bool) -> str:
    if rating is None:
        return _UNKNOWN
    return f"{rating.mu:+.1f}±{rating.sigma:.1f}" if is_relative else f"{rating.mu:.1f}±{rating.sigma:.1f}"


def _printable(line: str) -> str:
    # Names come from a file, and a terminal acts upon control characters.
    return "".join(character if character.isprintable() else "?" for character in line)
