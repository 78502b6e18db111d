"""Calls of a league's mode, which may be a user's own: errors have the mode's name, and answers are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from marlflow.base.errors import MatchmakerFailed
from marlflow.league.matches import Matches
from marlflow.league.members import Members
from marlflow.league.modes import LeagueMode
from marlflow.league.payoffs import Profile
from marlflow.matchmaking.matchmakers import called


def solution_of(mode: LeagueMode, members: Members) -> Sequence[Mapping[str, float]] | None:
    """Return the mode's solution; raises MatchmakerFailed unless it is None or a mixture of members for each role."""
    with called(mode, "solution") as where:
        solution = mode.solution(members)
    if solution is not None and (problem := _problem_of_solution(solution, members)):
        raise MatchmakerFailed(where, problem)
    return solution


def matches_wanted_of(mode: LeagueMode, members: Members, matches: Matches) -> Mapping[Profile, int]:
    """Return the games that the mode's meta-game needs; raises MatchmakerFailed unless all can be played."""
    with called(mode, "matches_wanted") as where:
        wanted = mode.matches_wanted(members, matches)
    if problem := _problem_of_games(wanted, members):
        raise MatchmakerFailed(where, problem)
    return wanted


def _problem_of_solution(solution: Any, members: Members) -> str:
    roles = _roles(members)
    if (
        not isinstance(solution, Sequence)
        or len(solution) != len(roles)
        or not all(isinstance(mixture, Mapping) for mixture in solution)
    ):
        return f"it returned {solution!r}, not a list of one mapping {{member: probability}} for each role: {roles}"
    for role, mixture in enumerate(solution):
        for name, probability in mixture.items():
            if not members.plays(name, role):
                return f"it gave a probability to {name!r}, which is no member that plays role {roles[role]!r}"
            if not isinstance(probability, Real) or not float(probability) >= 0:
                return f"it gave {name!r} the probability {probability!r}"
    return ""


def _problem_of_games(wanted: Any, members: Members) -> str:
    roles = _roles(members)
    if not isinstance(wanted, Mapping):
        return f"it returned {wanted!r}, not a mapping {{profile: games}}"
    for profile, games in wanted.items():
        is_profile = isinstance(profile, tuple) and len(profile) == len(roles)
        if not is_profile or not all(map(members.plays, profile, range(len(roles)))):
            return f"it asked for games of {profile!r}, which is not one member for each role: {roles}"
        if not isinstance(games, Integral) or games < 0:
            return f"it asked for {games!r} games of {profile!r}"
    return ""


def _roles(members: Members) -> list[str]:
    return [role.name for role in members.sides.roles]
