"""Choose the pairs of members that play matches next, within a number of games."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, combinations, product
from typing import Literal

from marlflow.league.league import MatchRules
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs, Profile

_MOST_PAIRED = 64
"""The most frozen members that are paired with each other; of more, evenly spaced ones are chosen."""


def next_matches(members: Members, payoffs: Payoffs, rules: MatchRules) -> dict[Profile, int]:
    """Return how many games each profile plays in the next set of matches.

    Pairs with the fewest games are next. With `all`, half of the games are of pairs with a live policy, whose strength
    changes, and half of pairs of frozen members. Among pairs with equally many games, pairs of widely spaced snapshots
    come first, so that the payoffs among some members become known completely.
    """
    live = _widely_spaced_first(members, pairings(members, "live", rules.mirrored))
    if rules.pairs == "live":
        return fewest_first(live, payoffs, rules.games)
    frozen = _widely_spaced_first(members, pairings(members, "frozen", rules.mirrored))
    counts = fewest_first(live, payoffs, math.ceil(rules.games / 2) if frozen else rules.games)
    return {**counts, **fewest_first(frozen, payoffs, rules.games - sum(counts.values()))}


def _widely_spaced_first(members: Members, groups: Sequence[list[Profile]]) -> list[list[Profile]]:
    return sorted(groups, key=lambda group: -min(_spacing(members, name) for name in group[0]))


def _spacing(members: Members, name: str) -> float:
    """Return the largest power of two that divides the number of snapshots before this one; infinite before any."""
    snapshot = members.snapshots.get(name)
    before = 0 if snapshot is None else snapshot.number - 1
    return before & -before if before else math.inf


def _spaced(members: Members, names: Sequence[str]) -> list[str]:
    """Return at most _MOST_PAIRED of `names`, evenly spaced, the first ones included.

    Members without a spacing (fixed policies, and the first snapshot of each policy) are all returned.
    """
    spacing = 1
    while len(kept := [name for name in names if _spacing(members, name) >= spacing]) > _MOST_PAIRED:
        if all(math.isinf(_spacing(members, name)) for name in kept):
            break
        spacing *= 2
    return kept


def pairings(members: Members, pairs: Literal["live", "frozen"] = "live", mirrored: bool = True) -> list[list[Profile]]:
    """Return the seatings of each pair of members: one of them plays one side, the other one all other sides.

    `live` pairs have a live policy, and `frozen` pairs have none; of many frozen members, evenly spaced ones are
    paired.

    A role that a member cannot play is played by the first live policy that can, else by the first fixed policy. A pair
    that cannot be seated against each other is left out; if `mirrored` is false, each pair has its first seating only.
    """
    fixed = (name for role in range(len(members.sides.roles)) for name in members.fixed_in(role))
    names = list(dict.fromkeys([*members.incarnations, *members.snapshots, *fixed]))
    live = [name for name in names if members.is_live(name)]
    frozen = [name for name in names if not members.is_live(name)]
    if pairs == "live":
        chosen = chain(combinations(live, 2), product(live, frozen))
    else:
        chosen = chain(combinations(_spaced(members, frozen), 2))
    found = []
    for one, other in chosen:
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

    The profiles of a group play equally often. A group with more profiles than remaining games plays no more. Of one
    with more profiles than `games`, the profiles that have played least play once. Games of interchangeable sides count
    for all orders of the sides.

    >>> from marlflow.league.sides import default_sides
    >>> payoffs = Payoffs(default_sides(["player_0", "player_1"]))
    >>> fewest_first([[("main", "main@1"), ("main@1", "main")], [("main", "main@2")]], payoffs, games=5)
    {('main', 'main@1'): 2, ('main@1', 'main'): 2, ('main', 'main@2'): 1}
    """
    counts = {profile: 0 for group in groups for profile in group}
    played = [_fewest_games(payoffs, group) for group in groups]
    heap = [(count, number) for number, count in enumerate(played)]
    heapq.heapify(heap)
    asked = games
    while heap and games > 0:
        count, number = heapq.heappop(heap)
        if len(groups[number]) > asked == games:
            return dict.fromkeys(sorted(groups[number], key=lambda one: _fewest_games(payoffs, [one]))[:games], 1)
        if len(groups[number]) > games:
            continue
        for profile in groups[number]:
            counts[profile] += 1
        games -= len(groups[number])
        heapq.heappush(heap, (count + 1, number))
    return {profile: count for profile, count in counts.items() if count}


def _fewest_games(payoffs: Payoffs, group: Sequence[Profile]) -> int:
    """Return the fewest games of a profile of `group`; the games of a cell are divided among its profiles."""
    sharing = Counter(map(payoffs.key, group))
    cells = {profile: payoffs.cell(profile) for profile in group}
    return min(0 if cell is None else cell.games // sharing[payoffs.key(profile)] for profile, cell in cells.items())
