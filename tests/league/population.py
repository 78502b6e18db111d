"""Populations of made-up members, and how often a mode or a matchmaker deals each."""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from scipy.stats import chisquare

import marlflow as mf
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.league import Teammates
from marlflow.league.members import Members
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.sides import Sides, default_sides

PAIR = default_sides(["player_0", "player_1"])
NEVER = mf.SnapshotRules(at_start=False, every_agent_steps=None)


def agents_of(sides: Sides) -> list[str]:
    return [agent for role in sides.roles for agent in role.agents]


def members_of(
    snapshots: Mapping[str, int], sides: Sides = PAIR, fits: Mapping[str, list[str]] | None = None
) -> Members:
    """Live policies with this many snapshots each, and `random`; all fit all agents, except the policies in `fits`."""
    agents = agents_of(sides)
    everything = dict.fromkeys([*snapshots, "random"], agents) | dict(fits or {})
    members = Members(sides, everything, live=list(snapshots))
    for policy, count in snapshots.items():
        for number in range(count):
            members.add(policy, version=number, env_steps=number, agent_steps=number)
    return members


def view_of(members: Members, chances: Mapping[tuple[str, str], float] | None = None) -> mf.LeagueView:
    """A view in which each pair's first beats its second with exactly this probability (a multiple of 1/100)."""
    payoffs = Payoffs(members.sides, members.incarnations, decay=1.0, prior_games=0.0)
    for (member, other), chance in (chances or {}).items():
        add_games(payoffs, member, other, wins=round(100 * chance), losses=round(100 * (1 - chance)))
    return mf.LeagueView(members, payoffs)


def add_games(payoffs: Payoffs, member: str, other: str, wins: int, losses: int) -> None:
    for difference in [1.0] * wins + [-1.0] * losses:
        payoffs.add(Game((member, other), (difference, -difference), 1))


def matchmaker_of(
    members: Members,
    mode: mf.LeagueMode | None = None,
    rules: mf.SnapshotRules = NEVER,
    shares: Mapping[str, float] | None = None,
    teammates: Teammates = "self",
    seed: int = 0,
) -> LeagueMatchmaker:
    live = list(members.incarnations)
    payoffs, ratings = Payoffs(members.sides, live), Ratings(live)
    return LeagueMatchmaker(members, mode or mf.Fictitious(), payoffs, ratings, rules, shares, teammates, seed)


def frequencies(draw: Callable[[np.random.Generator], object], times: int = 4000, seed: int = 7) -> Counter[object]:
    generator = np.random.default_rng(seed)
    return Counter(draw(generator) for _ in range(times))


def agree(counts: Counter[object], expected: Mapping[object, float]) -> bool:
    """Whether counts could be of this distribution; nothing of probability 0 may have been drawn."""
    possible = {key: chance for key, chance in expected.items() if chance > 0}
    if set(counts) - set(possible):
        return False
    total = sum(counts.values())
    observed = [counts[key] for key in possible]
    return len(possible) == 1 or chisquare(observed, [total * c for c in possible.values()]).pvalue > 1e-3
