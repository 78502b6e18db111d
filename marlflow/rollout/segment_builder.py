"""Turns decisions, rewards and ends into rows and segments, by the rules of attribution.

A lane has at most one open row: its last decision, whose reward is still growing. The row is complete when the agent
is asked again or has ended. What arrives while no row is open belongs to none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from marlflow.base.batch import Array, Batch
from marlflow.env import Ending
from marlflow.rollout.fragment import PolicyReceipt
from marlflow.rollout.policy_slots import PolicySlots
from marlflow.rollout.step_buffer import Segments, StepBuffer, ranges


class SegmentBuilder:
    """The rows of all lanes, at most `capacity` each between two `cut`s.

    `player_of` [lanes] is the number of the player that each lane belongs to now (-1: nobody yet); whoever deals the
    lanes changes it, between episodes.
    """

    def __init__(self, player_of: Array, players: int) -> None:
        lanes = len(player_of)
        self._player_of = player_of
        self._open = np.zeros(lanes, bool)
        self._cell = np.zeros(lanes, np.int64)  # of the open row; without one, where the next will stand
        self._start = np.zeros(lanes, np.int64)  # of the present segment
        self._carried = np.zeros(lanes, bool)  # the row in cell 0 was begun in the fragment before
        self._carried_version = np.zeros(lanes, np.int64)
        self._gained = np.zeros(lanes, np.float64)
        self._unattributed = np.zeros(players + 1, np.float64)  # the last is nobody's
        self._reward: Array = np.zeros((lanes, 0), np.float64)
        self._t_env: Array = np.zeros((lanes, 0), np.int32)
        self._t_agent: Array = np.zeros((lanes, 0), np.int32)
        self._flat: tuple[Array, ...] = ()
        self._ended: dict[str, list[_Ended]] = {}

    def renumber(self, players: int) -> None:
        """There are `players` players now, and `player_of` has their new numbers. Call right after a cut."""
        self._unattributed = np.zeros(players + 1, np.float64)

    def widen(self, capacity: int) -> None:
        """Makes room for `capacity` rows of every lane."""
        missing = capacity - self._reward.shape[1]
        if missing > 0:
            self._reward, self._t_env, self._t_agent = (
                np.pad(column, ((0, 0), (0, missing))) for column in (self._reward, self._t_env, self._t_agent)
            )
            # Views of the same cells: numpy writes by one index several times as fast as by two.
            self._flat = tuple(column.reshape(-1) for column in (self._reward, self._t_env, self._t_agent))

    def decided(self, lanes: Array, t_env: Array, t_agent: Array) -> Array:
        """`lanes` decide: completes their open rows and opens the next, in the cells that are returned."""
        flat_reward, flat_t_env, flat_t_agent = self._flat
        was_open = self._open[lanes]
        cell = self._cell[lanes]
        gained = self._gained[lanes]
        at = lanes * self._reward.shape[1] + cell
        flat_reward[at] = gained
        if not was_open.all():
            self._belongs_to_no_row(lanes, np.where(was_open, 0.0, gained))
            self._open[lanes] = True
        at += was_open
        cell += was_open
        self._gained[lanes] = 0.0
        self._cell[lanes] = cell
        flat_t_env[at] = t_env
        flat_t_agent[at] = t_agent
        return cell

    def received(self, lanes: Array, rewards: Array) -> None:
        """Rewards, in order; a lane may stand there several times."""
        np.add.at(self._gained, lanes, rewards)

    def received_late(self, lanes: Array, rewards: Array) -> None:
        """Rewards after the agents' ends."""
        self._belongs_to_no_row(lanes, rewards)

    def _belongs_to_no_row(self, lanes: Array, rewards: Array) -> None:
        np.add.at(self._unattributed, self._player_of[lanes], rewards)

    def ended(self, lane: int, ending: Ending, episode: int, player: PolicySlots, state: Array | None) -> None:
        """The trajectory of `lane` is over; `state` is the environment's, for policies that see it.

        Raises ObservationOutside if the final observation is not what was declared.
        """
        if not self._open[lane]:
            return  # it never decided
        cell, start = int(self._cell[lane]), int(self._start[lane])
        bootstrap = self._bootstrap(lane, cell, ending, player, state)
        self._reward[lane, cell] = self._gained[lane]
        self._gained[lane] = 0.0
        self._open[lane] = False
        self._cell[lane] = self._start[lane] = cell + 1
        if player.columns is None:
            return
        carried = start == 0 and bool(self._carried[lane])
        place = (player.columns.row(lane), start, cell + 1)
        ended = _Ended((*place, ending.terminated, ending.truncated, carried, episode), lane, bootstrap)
        self._ended.setdefault(player.policy, []).append(ended)

    def _bootstrap(
        self, lane: int, cell: int, ending: Ending, player: PolicySlots, state: Array | None
    ) -> dict[str, Array]:
        if player.columns is None:
            return {}
        row, data = player.columns.row(lane), player.columns.data
        if ending.observation is None:
            # The last one stands for it, with the memory that it was looked at with.
            seen = {name: data[name][row, cell].copy() for name in _BOOTSTRAPS if name in data}
        else:
            seen = {"obs": player.stack([ending.observation])[0]}
            if player.memory is not None:
                seen["memory"] = player.memory.recall(np.array([lane]))[0]
            if player.spaces.masked:
                seen["action_mask"] = player.stack_masks([ending.mask])[0]
        if state is not None and player.sees_state:
            seen["state"] = state.copy()
        return seen

    def over(self, lanes: slice) -> None:
        """The episode is over: whatever was received since belongs to no row."""
        gained = self._gained[lanes]
        if gained.any():
            np.add.at(self._unattributed, self._player_of[lanes], gained)
            gained[:] = 0.0

    def give_up(self, lanes: slice, episode: int, players: Sequence[PolicySlots]) -> int:
        """Drops what is here of a broken episode; returns how many rows of wanted policies that were."""
        lost = 0
        for number, player in enumerate(players):
            if player.columns is None:
                continue
            mine = np.flatnonzero(self._player_of[lanes] == number) + lanes.start
            lost += int((self._cell[mine] - self._start[mine] + self._open[mine]).sum())
            ended, kept = self._ended.pop(player.policy, []), []
            for one in ended:
                _, start, stop, *_, of_episode = one.values
                if lanes.start <= one.lane < lanes.stop and of_episode == episode:
                    lost += stop - start
                else:
                    kept.append(one)
            self._ended[player.policy] = kept
        self._cell[lanes] += self._open[lanes]
        self._start[lanes] = self._cell[lanes]
        self._open[lanes] = False
        self._carried[lanes] &= self._start[lanes] > 0
        self._gained[lanes] = 0.0
        return lost

    def cut(self, players: Sequence[PolicySlots], episodes: Array) -> dict[str, tuple[PolicyReceipt, Batch]]:
        """All complete rows, by policy, for those whose rows are wanted. Open rows open the next fragment.

        `players` are in the order of their numbers, `episodes` [lanes] is the running episode of each lane.
        """
        for player in players:
            self._complete(player.lanes)
        idle = np.flatnonzero(~self._open)
        self._belongs_to_no_row(idle, self._gained[idle])
        self._gained[idle] = 0.0
        cuts = {
            player.policy: self._cut(number, player, player.columns, episodes)
            for number, player in enumerate(players)
            if player.columns is not None
        }
        self._unattributed[:] = 0.0
        self._carry(players)
        return cuts

    def _complete(self, pending: Array) -> None:
        lanes = pending[self._open[pending]]
        self._reward[lanes, self._cell[lanes]] = self._gained[lanes]
        self._gained[lanes] = 0.0
        self._open[lanes] = False
        self._cell[lanes] += 1

    def _cut(
        self, number: int, player: PolicySlots, columns: StepBuffer, episodes: Array
    ) -> tuple[PolicyReceipt, Batch]:
        running = self._running(number, player, columns, episodes)
        ended = self._ended.pop(player.policy, [])
        segments = Segments.concat([_stacked(ended, running), running]) if ended else running
        lanes = columns.lanes[segments.row]
        # Of lanes, not of rows: which lane a policy played first must not show in the order.
        order = np.lexsort((segments.start, lanes))
        segments, lanes = segments.take(order), lanes[order]
        length = segments.stop - segments.start
        rows = columns.cut(segments)
        at = ranges(lanes * self._reward.shape[1] + segments.start, length)
        rows["reward"], rows["t_env"], rows["t_agent"] = (column.take(at) for column in self._flat)
        rows["version"] = np.full(len(at), player.version, np.int64)
        carried = segments.carried
        firsts = np.cumsum(length) - length
        rows["version"][firsts[carried]] = self._carried_version[lanes[carried]]
        table = {
            "length": length,
            "terminated": segments.terminated,
            "truncated": segments.truncated,
            "carried": carried,
            "episode": segments.episode,
            "lane": lanes,
            **{_BOOTSTRAPS[name]: column for name, column in segments.bootstrap.items()},
        }
        if player.memory is not None:
            table |= {"memory": rows["memory"][firsts], "memory_version": rows.pop("memory_version")[firsts]}
        unattributed = float(self._unattributed[number])
        return PolicyReceipt(len(at), int(carried.sum()), unattributed, player.version), Batch(rows, table)

    def _running(self, number: int, player: PolicySlots, columns: StepBuffer, episodes: Array) -> Segments:
        """The segments that go on after the cut: their bootstrap is what the lane now sees, or its open row."""
        lanes = columns.lanes
        row = np.flatnonzero((self._cell[lanes] > self._start[lanes]) & (self._player_of[lanes] == number))
        lanes = lanes[row]
        start, stop = self._start[lanes], self._cell[lanes]
        sees = np.full(columns.rows, -1)
        sees[player.rows] = np.arange(len(player.rows))
        sees = sees[row]
        open_rows = sees < 0
        bootstrap = {}
        now = player.seen if player.memory is None else {**player.seen, "memory": player.memory.recall(player.lanes)}
        for name, seen in now.items():
            bootstrap[name] = column = np.empty((len(row), *seen.shape[1:]), seen.dtype)
            column[~open_rows] = seen[sees[~open_rows]]
            column[open_rows] = columns.data[name][row[open_rows], stop[open_rows]]
        never = np.zeros(len(row), bool)
        carried = self._carried[lanes] & (start == 0)
        return Segments(row, start, stop, never, never, carried, episodes[lanes], bootstrap)

    def _carry(self, players: Sequence[PolicySlots]) -> None:
        for number, player in enumerate(players):
            columns = player.columns
            if columns is None:
                self._carried_version[self._open & (self._player_of == number)] = -1  # nobody asks for it
                continue
            row, lanes = self._open_of(number, columns)
            cell = self._cell[lanes]
            columns.carry(row, cell)
            again = self._carried[lanes] & (cell == 0)
            self._carried_version[lanes] = np.where(again, self._carried_version[lanes], player.version)
        open_lanes = np.flatnonzero(self._open)
        for column in (self._reward, self._t_env, self._t_agent):
            column[open_lanes, 0] = column[open_lanes, self._cell[open_lanes]]
        self._carried = self._open.copy()
        self._cell[:] = 0
        self._start[:] = 0

    def open_rows(self) -> dict[str, Array]:
        """The rows that are open after a `cut`, without what the players' columns have of them; by `lane`."""
        lanes = np.flatnonzero(self._open)
        return {
            "lane": lanes,
            "gained": self._gained[lanes],
            "t_env": self._t_env[lanes, 0],
            "t_agent": self._t_agent[lanes, 0],
            "version": self._carried_version[lanes],
        }

    def seen_in_open_rows(self, number: int, columns: StepBuffer) -> dict[str, Array]:
        """What the columns of player `number` have of its open rows; by `lane`."""
        row, lanes = self._open_of(number, columns)
        row, lanes = row[np.argsort(lanes)], np.sort(lanes)
        return {"lane": lanes, **{name: column[row, 0] for name, column in columns.data.items()}}

    def reopen(self, rows: Mapping[str, Array]) -> None:
        """Opens rows as they were, before anything else is recorded."""
        lanes = rows["lane"]
        self._open[lanes] = self._carried[lanes] = True
        self._gained[lanes], self._carried_version[lanes] = rows["gained"], rows["version"]
        self._t_env[lanes, 0], self._t_agent[lanes, 0] = rows["t_env"], rows["t_agent"]

    def _open_of(self, number: int, columns: StepBuffer) -> tuple[Array, Array]:
        """The rows of the columns that are open, and their lanes."""
        row = np.flatnonzero(self._open[columns.lanes] & (self._player_of[columns.lanes] == number))
        return row, columns.lanes[row]


_BOOTSTRAPS = {
    "obs": "bootstrap_obs",
    "action_mask": "bootstrap_mask",
    "state": "bootstrap_state",
    "memory": "bootstrap_memory",
}


class _Ended(NamedTuple):
    """A segment that ended, of `lane`: `values` are those of Segments, in its order, up to the episode's number."""

    values: tuple[int, int, int, bool, bool, bool, int]
    lane: int
    bootstrap: dict[str, Array]


def _stacked(ended: Sequence[_Ended], like: Segments) -> Segments:
    """The segments that ended, as columns of the dtypes of `like`."""
    values = zip(*(one.values for one in ended), strict=True)
    return Segments.of(
        [np.array(column, kind.dtype) for column, kind in zip(values, like[:7], strict=True)],
        {name: np.stack([one.bootstrap[name] for one in ended]) for name in like.bootstrap},
    )
