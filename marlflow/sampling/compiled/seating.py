"""The players of the episodes of a compiled call: running episodes, and episodes that may begin in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from marlflow.base.arrays import Array
from marlflow.sampling.episodes import TrainingEpisodes
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.protocol import Matchup

Fits: TypeAlias = Callable[[str, int], bool]

_NO_LIMIT = 2**31 - 1
_FEWEST_EPISODES = 16


class Seating(NamedTuple):
    """`entries` and `members`, [B, E, A], by slot: the number of its policy slots, and its member in a cohort.

    The running episode is number 0 of E; if the agents keep their policies there is no other. `left` [B] is how many
    may begin. `matchups` has those to come, by environment.
    """

    entries: Array
    members: Array
    left: Array
    matchups: list[list[Matchup]]
    is_dealt: bool

    def take_over(self, lanes: Lanes, seat: Array) -> None:
        """Seat the agents of the episodes that run now: `seat` [B]."""
        if not self.is_dealt:
            return
        envs = np.arange(len(seat))
        lanes.seat_all(self.entries[envs, seat].reshape(-1), self.members[envs, seat].reshape(-1))
        for index in np.flatnonzero(seat).tolist():
            lanes.matchups[index] = self.matchups[index][seat[index] - 1]


def seating(lanes: Lanes, episodes: TrainingEpisodes, agents: list[str], fits: Fits, ticks: int, room: int) -> Seating:
    """Return who plays, in a call of `ticks` ticks; with room for `room` episodes of each environment, or more.

    `fits` says whether an agent has the spaces of the policy slots of this number.
    """
    num_envs = len(lanes.matchups)
    shape = num_envs, 1, lanes.stride
    entries, members = lanes.entry_of.reshape(shape), lanes.row_of.reshape(shape)
    if not episodes.is_dealt:
        return Seating(entries, members, np.full(num_envs, _NO_LIMIT), [], False)
    # In each tick one episode ends at most.
    matchups = [list(episodes.dealt_after(index))[:ticks] for index in range(num_envs)]
    seats: dict[int, tuple[list[int], list[int]] | None] = {}
    for index, dealt in enumerate(matchups):
        for at, matchup in enumerate(dealt):
            if id(matchup) not in seats:
                seats[id(matchup)] = _seats(lanes, matchup, agents, fits)
            if seats[id(matchup)] is None:
                # An entry that is not here, or has other spaces: the reset that would begin it says so.
                matchups[index] = dealt[:at]
                break
    # A larger table is another program.
    most = max(room, _FEWEST_EPISODES)
    while most <= max(map(len, matchups)):
        most *= 4
    entries, members = (np.repeat(array, most, axis=1) for array in (entries, members))
    for index, dealt in enumerate(matchups):
        for at, matchup in enumerate(dealt, start=1):
            found = seats[id(matchup)]
            assert found is not None, "it was left out"
            entries[index, at], members[index, at] = found
    return Seating(entries, members, np.array([len(dealt) for dealt in matchups]), matchups, True)


def _seats(
    lanes: Lanes, matchup: Mapping[str, str], agents: list[str], fits: Fits
) -> tuple[list[int], list[int]] | None:
    numbers, rows = [], []
    for slot, agent in enumerate(agents):
        seat = lanes.table.seat(matchup.get(agent) or lanes.policy_of(agent), slot)
        if seat is None or not fits(agent, seat.number):
            return None
        numbers.append(seat.number)
        rows.append(seat.row)
    return numbers, rows
