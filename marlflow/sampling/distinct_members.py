"""Limit how many frozen entries one worker is dealt, for networks of which it cannot hold many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from marlflow.sampling.protocol import Matchup


class DistinctMembers:
    """Seats at most `limit` different frozen entries in the matchups that wait for one worker, `earlier` ones first.

    A matchup beyond the limit becomes one of the earlier ones that seat versions of the same policies, so entries are
    dealt as often as without a limit, over many rounds. `policy_of` has the policy of each frozen entry.

    >>> of = {"main@1": "main", "main@2": "main", "main@3": "main"}
    >>> members = DistinctMembers(2, of, [{"a": "main", "b": "main@1"}, {"a": "main", "b": "main@2"}])
    >>> members.limited({"a": "main", "b": "main@3"}, draw=0)
    {'a': 'main', 'b': 'main@1'}
    >>> members.limited({"a": "main@3", "b": "main"}, draw=1)
    {'a': 'main@2', 'b': 'main'}
    """

    def __init__(self, limit: int, policy_of: Mapping[str, str], earlier: Iterable[Matchup]) -> None:
        self._limit, self._policy_of = limit, policy_of
        self._seated: dict[str, None] = {}
        self._alike: dict[tuple[tuple[str, bool], ...], list[Matchup]] = {}
        for matchup in earlier:
            self._include(matchup)

    def _include(self, matchup: Matchup) -> None:
        self._seated.update((name, None) for name in matchup.values() if name in self._policy_of)
        self._alike.setdefault(self._kind(matchup), []).append(matchup)

    def _kind(self, matchup: Matchup) -> tuple[tuple[str, bool], ...]:
        return tuple((self._policy_of.get(name, name), name in self._policy_of) for name in matchup.values())

    def limited(self, matchup: Matchup, draw: int) -> Matchup:
        """Return `matchup`, or one within the limit, which the number `draw` chooses."""
        new = {name for name in matchup.values() if name in self._policy_of and name not in self._seated}
        if len(self._seated) + len(new) > self._limit:
            if alike := self._alike.get(self._kind(matchup)):
                return alike[draw % len(alike)]
            matchup = {agent: self._instead(name, draw) for agent, name in matchup.items()}
        self._include(matchup)
        return matchup

    def _instead(self, name: str, draw: int) -> str:
        if name not in self._policy_of or name in self._seated:
            return name
        others = [other for other in self._seated if self._policy_of[other] == self._policy_of[name]]
        # Without any version of that policy, the policy itself.
        return others[draw % len(others)] if others else self._policy_of[name]
