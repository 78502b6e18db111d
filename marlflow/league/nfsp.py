"""NFSP: neural fictitious self-play (Heinrich and Silver, 2016, arXiv:1603.01121).

A best response learns by reinforcement from the games of both policies; an average policy imitates all actions of the
best response. The average policies of all sides approach a Nash equilibrium of two-player zero-sum games.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.base.ranges import SomeShare
from marlflow.base.sentences import meant
from marlflow.league.members import Members
from marlflow.league.modes import LeagueMode, LeagueView, pick

_DEFAULT_PAIRS: Mapping[str, str] = {"response": "average"}


@dataclass(frozen=True)
class NFSP(LeagueMode):
    """Each side of each game is played by a best response with probability `eta`, else by its average policy.

    `pairs` maps each best response to its average policy, None: {response: average}. One pair may play all roles, or
    each role may have its own. A best response learns from its own rows and from the rows of its average policy; the
    average policy learns from the rows of the best response. `policies.<id>.learns_from` replaces these sources.
    Actions are imitated as they were taken, with exploration, as in OpenSpiel's NFSP.
    """

    eta: SomeShare = 0.1  #: probability of a side to be played by a best response rather than its average policy
    pairs: Mapping[str, str] | None = None  #: {<best response>: <its average policy>, ...}; None: {response: average}

    @property
    def average_of(self) -> Mapping[str, str]:
        """The average policy of each best response."""
        return _DEFAULT_PAIRS if self.pairs is None else self.pairs

    def learns_from(self) -> dict[str, Sequence[str]]:
        sources: dict[str, Sequence[str]] = {}
        for response, average in self.average_of.items():
            sources |= {response: (response, average), average: (response,)}
        return sources

    def problems(self, members: Members) -> list[str]:
        if missing := list(self._missing(members)):
            return missing
        roles, names = range(len(members.sides.roles)), [*self.average_of, *self.average_of.values()]
        problems = [
            f"no pair of policies can play role {members.sides.roles[role].name!r}; let one play its agents, by "
            "league.players.<id>.plays"
            for role in roles
            if not self._responses_in(members, role)
        ]
        problems += [
            f"policies {response!r} and {average!r} are a pair, and cannot play the same roles; set "
            "league.players.<id>.plays of both"
            for response, average in self.average_of.items()
            if any(members.plays(response, role) != members.plays(average, role) for role in roles)
        ]
        problems += [
            f"policy {name!r} is in pairs more than once; each best response has an average policy of its own"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        return problems + [
            f"policy {name!r} is in no pair, so it would never play; add it to pairs, or remove it"
            for name in members.incarnations
            if name not in names
        ]

    def _missing(self, members: Members) -> Iterator[str]:
        for response, average in self.average_of.items():
            for name, group in ((response, "dqn"), (average, "clone")):
                if not members.is_live(name):
                    known = meant(name, members.incarnations, "the policies that learn are")
                    yield f"it needs a policy {name!r} that learns{known}; add it, policy@policies.{name}={group}"

    def profile(self, view: LeagueView, generator: np.random.Generator) -> list[str]:
        """Return the member for each role of a game: in one side, all are best responses or all average policies."""
        members = view.members
        responds = generator.random(len(members.sides.names)) < self.eta
        return [
            self._member(members, number, bool(responds[role.side]), generator)
            for number, role in enumerate(members.sides.roles)
        ]

    def solution(self, members: Members) -> Sequence[Mapping[str, float]] | None:
        """Return the average policies: their mixture in each role approaches an equilibrium."""
        responses = [self._responses_in(members, role) for role in range(len(members.sides.roles))]
        return [{self.average_of[response]: 1 / len(names) for response in names} for names in responses]

    def _member(self, members: Members, role: int, responds: bool, generator: np.random.Generator) -> str:
        responses = self._responses_in(members, role)
        response = responses[0] if len(responses) == 1 else pick(responses, generator)
        return response if responds else self.average_of[response]

    def _responses_in(self, members: Members, role: int) -> list[str]:
        return [response for response in self.average_of if members.plays(response, role)]
