"""A worker's table of weights: the live policies, and frozen versions of them that come and go between collects.

A live entry has its policy's name, and newer versions replace its weights. A frozen entry has an id such as `main@3`
and acts by one version of its policy for good, with an actor and a memory of its own; its rows are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.policy.actor import Actor
from marlflow.rollout.policy_slots import PolicySlots
from marlflow.rollout.protocol import FrozenPolicy


class Table:
    """A player for each entry, numbered in order: the `live` ones first, then frozen ones as they came.

    `make_actors` makes new actors, by policy; the weights of `publishing_critics` have the critic's parameters too.
    """

    def __init__(
        self,
        live: Sequence[PolicySlots],
        make_actors: Mapping[str, Callable[[], Actor]],
        publishing_critics: Collection[str],
    ) -> None:
        self.players = list(live)
        """In the order of their numbers; changed in place, so it may be shared."""
        self._live = {player.policy: player for player in live}
        self._numbers = {player.policy: number for number, player in enumerate(live)}
        self._make_actors, self._publishing_critics = make_actors, frozenset(publishing_critics)

    def __contains__(self, entry: object) -> bool:
        return entry in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def live(self, policy: str) -> PolicySlots | None:
        """The player of a live policy; None if it does not play here."""
        return self._live.get(policy)

    def number(self, entry: str | None) -> int | None:
        """The number of an entry's player; None if there is no such entry."""
        return None if entry is None else self._numbers.get(entry)

    def add(self, frozen: Mapping[str, FrozenPolicy], lanes: int) -> None:
        """Adds the frozen entries that are not in the table yet, each for a worker of `lanes` lanes.

        Raises ConfigInvalid if one is of a policy that is not in the table.
        """
        for entry, kept in frozen.items():
            if entry in self._numbers:
                continue
            if (policy := self._live.get(kept.policy)) is None:
                known = ", ".join(self._live)
                problem = f"frozen entry {entry!r} is of policy {kept.policy!r}, which no worker has; there are {known}"
                raise ConfigInvalid([problem])
            actor = self._make_actors[kept.policy]()
            actor.set_schedule(kept.scheduled)
            player = PolicySlots(entry, actor, policy.spaces, lanes, recorded=False)
            player.load(kept.weights, kept.policy in self._publishing_critics)
            self._numbers[entry] = len(self.players)
            self.players.append(player)

    def remove(self, entries: Collection[str], player_of: Array) -> None:
        """Removes frozen entries that no lane needs any more, and renumbers `player_of` [lanes], where -1 is nobody."""
        staying = [number for number, player in enumerate(self.players) if player.policy not in entries]
        renumbered = np.full(len(self.players) + 1, -1)  # the last is for -1 itself
        renumbered[staying] = np.arange(len(staying))
        player_of[:] = renumbered[player_of]
        self.players[:] = [self.players[number] for number in staying]
        self._numbers = {player.policy: number for number, player in enumerate(self.players)}

    def elsewhere(self, lanes: int) -> Table:
        """The same entries, which act with the same actors in `lanes` other lanes; no rows are recorded there."""
        return Table([player.unrecorded(lanes) for player in self.players], {}, ())
