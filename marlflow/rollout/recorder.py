"""Turns decisions, rewards and ends into rows and segments, by the rules of attribution.

A lane has at most one open row: its last decision, whose reward is still growing. The row is complete when the agent
is asked again or has ended. What arrives while no row is open belongs to none.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from marlflow.base.batch import Array, Batch
from marlflow.env import Ending
from marlflow.rollout.columns import Columns, Segments, ragged
from marlflow.rollout.fragment import PolicyReceipt
from marlflow.rollout.player import Player


class Recorder:
    """The rows of `lanes` lanes, at most `capacity` each between two `cut`s."""

    def __init__(self, lanes: int) -> None:
        self._open = np.zeros(lanes, bool)
        self._cell = np.zeros(lanes, np.int64)  # of the open row; without one, where the next will stand
        self._start = np.zeros(lanes, np.int64)  # of the present segment
        self._carried = np.zeros(lanes, bool)  # the row in cell 0 was begun in the fragment before
        self._carried_version = np.zeros(lanes, np.int64)
        self._gained = np.zeros(lanes, np.float64)
        self._unattributed = np.zeros(lanes, np.float64)
        self._reward: Array = np.zeros((lanes, 0), np.float64)
        self._t_env: Array = np.zeros((lanes, 0), np.int32)
        self._t_agent: Array = np.zeros((lanes, 0), np.int32)
        self._flat: tuple[Array, ...] = ()
        self._ended: dict[str, list[_Ended]] = {}

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
            self._unattributed[lanes] += np.where(was_open, 0.0, gained)
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
        np.add.at(self._unattributed, lanes, rewards)

    def ended(self, lane: int, ending: Ending, episode: int, player: Player) -> None:
        """The trajectory of `lane` is over."""
        if not self._open[lane]:
            return  # it never decided
        cell, start = int(self._cell[lane]), int(self._start[lane])
        self._reward[lane, cell] = self._gained[lane]
        self._gained[lane] = 0.0
        self._open[lane] = False
        self._cell[lane] = self._start[lane] = cell + 1
        columns = player.columns
        if columns is None:
            return
        row = columns.row_of(lane)
        if ending.observation is None:
            obs = columns.data["obs"][row, cell].copy()
            mask = columns.data["action_mask"][row, cell].copy() if player.spaces.masked else None
        else:
            obs = player.stack([ending.observation])[0]
            if player.may_be_nan and np.isnan(obs).any():
                raise ValueError("the final observation has a NaN")
            mask = player.stack_masks([ending.mask])[0] if player.spaces.masked else None
        carried = start == 0 and bool(self._carried[lane])
        segment = (row, start, cell + 1, ending.terminated, ending.truncated, carried, episode, obs, mask)
        self._ended.setdefault(player.policy, []).append(segment)

    def over(self, lanes: slice) -> None:
        """The episode is over: whatever was received since belongs to no row."""
        gained = self._gained[lanes]
        if gained.any():
            self._unattributed[lanes] += gained
            gained[:] = 0.0

    def cut(self, players: Iterable[Player], episodes: Array) -> dict[str, tuple[PolicyReceipt, Batch]]:
        """All complete rows, by policy, for those whose rows are wanted. Open rows open the next fragment.

        `episodes` [lanes] is the running episode of each lane.
        """
        players = list(players)
        for player in players:
            self._complete(player.lanes)
        idle = ~self._open
        self._unattributed[idle] += self._gained[idle]
        self._gained[idle] = 0.0
        cuts = {p.policy: self._cut(p, p.columns, episodes) for p in players if p.columns is not None}
        self._unattributed[:] = 0.0
        self._carry(players)
        return cuts

    def _complete(self, pending: Array) -> None:
        lanes = pending[self._open[pending]]
        self._reward[lanes, self._cell[lanes]] = self._gained[lanes]
        self._gained[lanes] = 0.0
        self._open[lanes] = False
        self._cell[lanes] += 1

    def _cut(self, player: Player, columns: Columns, episodes: Array) -> tuple[PolicyReceipt, Batch]:
        lanes = columns.lanes
        lengths = self._cell[lanes]
        running = self._running(player, columns, episodes)
        segments = _in_order(_stacked(self._ended.pop(player.policy, []), running), running)
        rows = {name: ragged(column[: len(lanes)], lengths) for name, column in columns.data.items()}
        rows["reward"] = ragged(self._reward[lanes], lengths)
        rows["t_env"] = ragged(self._t_env[lanes], lengths)
        rows["t_agent"] = ragged(self._t_agent[lanes], lengths)
        rows["version"] = np.full(len(rows["reward"]), player.version, np.int64)
        length = segments.stop - segments.start
        firsts = (np.cumsum(length) - length)[segments.carried]
        rows["version"][firsts] = self._carried_version[lanes[segments.row[segments.carried]]]
        table = {
            "length": length,
            "terminated": segments.terminated,
            "truncated": segments.truncated,
            "bootstrap_obs": segments.bootstrap_obs,
            "carried": segments.carried,
            "episode": segments.episode,
            "lane": lanes[segments.row],
        }
        if segments.bootstrap_mask is not None:
            table["bootstrap_mask"] = segments.bootstrap_mask
        unattributed = float(self._unattributed[lanes].sum())
        receipt = PolicyReceipt(len(rows["reward"]), int(segments.carried.sum()), unattributed, player.version)
        return receipt, Batch(rows, table)

    def _running(self, player: Player, columns: Columns, episodes: Array) -> Segments:
        """The segments that go on after the cut: their bootstrap is what the lane now sees, or its open row."""
        lanes = columns.lanes
        row = np.flatnonzero(self._cell[lanes] > self._start[lanes])
        start, stop = self._start[lanes[row]], self._cell[lanes[row]]
        sees = np.full(len(lanes), -1)
        sees[player.rows] = np.arange(len(player.rows))
        sees = sees[row]
        open_rows = sees < 0
        obs = np.empty((len(row), *player.spaces.obs_shape), player.spaces.obs_dtype)
        obs[~open_rows] = player.obs[sees[~open_rows]]
        obs[open_rows] = columns.data["obs"][row[open_rows], stop[open_rows]]
        mask = None
        if player.spaces.masked:
            mask = np.ones((len(row), player.spaces.num_actions), bool)
            if player.mask is not None:
                mask[~open_rows] = player.mask[sees[~open_rows]]
            mask[open_rows] = columns.data["action_mask"][row[open_rows], stop[open_rows]]
        never = np.zeros(len(row), bool)
        carried = self._carried[lanes[row]] & (start == 0)
        return Segments(row, start, stop, never, never, carried, episodes[lanes[row]], obs, mask)

    def _carry(self, players: Iterable[Player]) -> None:
        for player in players:
            columns = player.columns
            if columns is None:
                continue
            row = np.flatnonzero(self._open[columns.lanes])
            lanes = columns.lanes[row]
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


_Ended = tuple[int, int, int, bool, bool, bool, int, Array, Array | None]


def _stacked(ended: list[_Ended], like: Segments) -> Segments:
    """The segments that ended, as columns of the dtypes of `like`."""
    if not ended:
        return Segments(*(None if column is None else column[:0] for column in like))  # type: ignore[arg-type]
    columns = zip(*ended, strict=True)
    return Segments(
        *(
            None if kind is None else np.asarray(np.stack(column), dtype=kind.dtype)  # type: ignore[arg-type]
            for kind, column in zip(like, columns, strict=True)
        )
    )


def _in_order(ended: Segments, running: Segments) -> Segments:
    """Both, lane by lane and in the order of time."""
    order = np.lexsort((np.concatenate([ended.start, running.start]), np.concatenate([ended.row, running.row])))
    return Segments(
        *(
            None if first is None or second is None else np.concatenate([first, second])[order]
            for first, second in zip(ended, running, strict=True)
        )  # type: ignore[arg-type]
    )
