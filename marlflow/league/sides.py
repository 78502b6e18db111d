"""Sides of a game and the roles of each: which agents share an objective, and which of them one member plays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean

from marlflow.base.sentences import enumerated
from marlflow.sampling.mapping import group

_TOO_FEW_SIDES = "league.sides needs at least two sides, since rivals play on different sides"


@dataclass(frozen=True, slots=True)
class Role:
    """Agents of one side that one member plays."""

    name: str
    side: int
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """All sides of a game. Roles are ordered by side, and a profile has one member for each role in this order.

    >>> sides = default_sides(["player_0", "player_1"])
    >>> sides.names, [role.name for role in sides.roles]
    (('player_0', 'player_1'), ['player_0', 'player_1'])
    """

    names: tuple[str, ...]
    roles: tuple[Role, ...]

    def of_side(self, side: int) -> tuple[int, ...]:
        """Return the indices of the roles of a side."""
        return tuple(index for index, role in enumerate(self.roles) if role.side == side)

    def role_means(self, returns: Mapping[str, float]) -> tuple[float, ...]:
        """Return the mean return of each role's agents; an agent that is not in `returns`, by agent, has 0."""
        return tuple(fmean(returns.get(agent, 0.0) for agent in role.agents) for role in self.roles)

    def side_means(self, of_roles: Sequence[float]) -> tuple[float, ...]:
        """Return the mean of each side over its roles, from one number for each role."""
        return tuple(fmean(of_roles[role] for role in self.of_side(side)) for side in range(len(self.names)))

    def matchup(self, profile: Sequence[str]) -> dict[str, str]:
        """Return the member that plays each agent."""
        return {agent: member for role, member in zip(self.roles, profile, strict=True) for agent in role.agents}

    def profile(self, matchup: Mapping[str, str]) -> tuple[str, ...]:
        """Return the member of each role; raises KeyError if an agent of a role is not in `matchup`."""
        return tuple(matchup[role.agents[0]] for role in self.roles)


def default_sides(agents: Sequence[str]) -> Sides:
    """Make each agent a side if all are of one group, else each group; each side has one role.

    >>> default_sides(["adversary_0", "adversary_1", "agent_0"]).names
    ('adversary', 'agent')
    """
    groups: dict[str, list[str]] = {}
    for agent in agents:
        groups.setdefault(group(agent), []).append(agent)
    sides = {agent: [agent] for agent in agents} if len(groups) == 1 else groups
    roles = [Role(name, number, tuple(members)) for number, (name, members) in enumerate(sides.items())]
    return Sides(tuple(sides), tuple(roles))


def sides_of(layout: Mapping[str, Sequence[Sequence[str]]] | None, agents: Sequence[str]) -> tuple[Sides, list[str]]:
    """Return the sides that `layout` describes, or the default ones, and the problems of `layout`.

    `layout` maps the name of a side to its roles, each a list of agents' names or globs.
    """
    if layout is None:
        default = default_sides(agents)
        return default, [] if len(default.names) > 1 else [_TOO_FEW_SIDES]
    roles: list[Role] = []
    problems: list[str] = []
    for number, (side, lists) in enumerate(layout.items()):
        if not lists:
            problems.append(f"league.sides.{side} has no roles; list the agents of at least one, or leave the side out")
        for index, patterns in enumerate(lists):
            name = side if len(lists) == 1 else f"{side}_{index}"
            matched = [agent for agent in agents if any(fnmatchcase(agent, pattern) for pattern in patterns)]
            problems += _unmatched(side, patterns, agents)
            if not patterns:
                problems.append(f"league.sides.{side}: a role has no agents; name at least one, or leave the role out")
            roles.append(Role(name, number, tuple(matched)))
    problems += _misplaced(roles, agents)
    if len(layout) < 2:
        problems.append(_TOO_FEW_SIDES)
    return Sides(tuple(layout), tuple(roles)), problems


def _unmatched(side: str, patterns: Sequence[str], agents: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        if not any(fnmatchcase(agent, pattern) for agent in agents):
            yield f"league.sides.{side}: {pattern!r} matches no agent; the agents are {enumerated(agents)}"


def _misplaced(roles: Sequence[Role], agents: Sequence[str]) -> Iterator[str]:
    for agent in agents:
        names = [role.name for role in roles if agent in role.agents]
        if len(names) != 1:
            where = f"in {' and in '.join(names)}" if names else "in no role"
            yield f"league.sides: agent {agent!r} is {where}; put it in one role of one side"
