"""Build rows and segments, crediting each reward, also between an AEC agent's turns, to the agent's last decision.

A lane's open row is its last decision, whose reward accumulates until the agent acts again or ends. A reward without an
open row, such as a dead agent's, is in the episode's return and in the metric `reward_unattributed`, but in no row.
Info columns that are added up (`base.info_columns`), such as costs, have the same rules and the metric
`infos_unattributed`; for other columns, a row has the last number since its action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import BOOTSTRAPS, Batch
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.env_source import Finals
from marlflow.sampling.lanes import Credited, Lanes
from marlflow.sampling.receipts import PolicyReceipt
from marlflow.sampling.step_buffer import Segments, StepBuffer, ranges


class Ticks(NamedTuple):
    """The results of T ticks, [T, lanes]: whether each lane decided, and whether its agent then ended.

    `infos` [S, T, lanes] are the stepped info columns, columns in rows first, NaN where there is no number.
    `entry_of` has the lanes' acting policies by number, -1 without a policy.
    """

    decided: Array
    ended: Array
    t_env: Array
    t_agent: Array
    rewards: Array
    infos: Array
    entry_of: Array


class EndsOfRows(NamedTuple):
    """The segments that ended in some ticks: lane and tick of the end, first cell, last cell + 1; [S] each."""

    lane: Array
    tick: Array
    start: Array
    stop: Array
    carried: Array


class SegmentBuilder:
    """The rows of all lanes, at most `capacity` per lane between two cuts."""

    def __init__(self, of_lanes: Lanes) -> None:
        # By number; there may be more after a cut.
        self._acting_policies = of_lanes.table.acting_policies
        # Each lane's acting policy by number (-1: none), [lanes]; it changes between episodes only.
        self._entry_of = entry_of = of_lanes.entry_of
        lanes, num_entries = len(entry_of), len(self._acting_policies)
        self.is_open = np.zeros(lanes, bool)
        """Whether each lane has an open row, [lanes]."""
        # The cell of the open row; without one, the cell of the next.
        self._cell = np.zeros(lanes, np.int64)
        # The first cell of the running segment.
        self._start = np.zeros(lanes, np.int64)
        # Whether the row in cell 0 was opened in the previous fragment.
        self._carried = np.zeros(lanes, bool)
        self._carried_version = np.zeros(lanes, np.int64)
        self._rewards = Credited(entry_of, num_entries)
        self._columns = {of.name: Credited(entry_of, num_entries, of.adds) for of in of_lanes.columns.in_rows}
        self._credited = [self._rewards, *self._columns.values()]
        self._t_env: Array = np.zeros((lanes, 0), np.int32)
        self._t_agent: Array = np.zeros((lanes, 0), np.int32)
        self._flat: tuple[Array, ...] = ()
        # By policy: the segments that ended since the last cut, and their lanes, step by step.
        self._ended: dict[str, list[tuple[Segments, Array]]] = {}

    def renumber(self) -> None:
        """Resize for new acting policies, after a cut."""
        for credited in self._credited:
            credited.renumber(len(self._acting_policies))

    def widen(self, capacity: int) -> None:
        """Make room for `capacity` rows per lane."""
        for acting in self._acting_policies:
            if acting.buffer is not None:
                acting.buffer.widen(capacity)
        missing = capacity - self._capacity
        if missing > 0:
            self._t_env, self._t_agent = (
                np.pad(column, ((0, 0), (0, missing))) for column in (self._t_env, self._t_agent)
            )
            # Flat views: numpy writes with one index array several times as fast as with two.
            self._flat = tuple(column.reshape(-1) for column in (self._t_env, self._t_agent))
            for credited in self._credited:
                credited.widen(missing)

    @property
    def _capacity(self) -> int:
        return int(self._t_env.shape[1])

    def open_next(self, lanes: Array, t_env: Array, t_agent: Array) -> Array:
        """Complete the open rows of `lanes`, open their next ones, and return their cells."""
        flat_t_env, flat_t_agent = self._flat
        was_open = self.is_open[lanes]
        cell = self._cell[lanes]
        at = lanes * self._capacity + cell
        for credited in self._credited:
            credited.close(lanes, at, was_open)
        self.is_open[lanes] = True
        at += was_open
        cell += was_open
        self._cell[lanes] = cell
        flat_t_env[at] = t_env
        flat_t_agent[at] = t_agent
        return cell

    def add_ticks(self, ticks: Ticks) -> tuple[Array, EndsOfRows]:
        """Open and complete the rows of T ticks at once, as `open_next`, `add` and `end_segments` would.

        Returns the cells of the rows, [T, lanes], where lanes decided, and the segments that ended.
        """
        decided, ended = ticks.decided, ticks.ended
        was_open, times = self.is_open.copy(), np.arange(len(decided))[:, None]
        # The cell of the last row so far; before the first one, of the row that was open, if any was.
        cells = self._cell + was_open - 1 + np.cumsum(decided, axis=0)
        latest = np.maximum.accumulate(np.where(decided, times, -1), axis=0)
        last_end = np.maximum.accumulate(np.where(ended, times, -2), axis=0)
        before = np.where(was_open, -2, -1)
        end_before = np.maximum(np.concatenate([np.full((1, len(before)), -2), last_end[:-1]]), before)
        is_open = latest > end_before
        self.is_open[:] = latest[-1] > np.maximum(last_end[-1], before)
        flat = np.arange(len(before)) * self._capacity
        at = np.concatenate([(flat + self._cell)[None], flat + np.maximum(cells, 0)])
        opening = np.concatenate([was_open[None], is_open])
        for credited, given in zip(self._credited, (ticks.rewards, *ticks.infos), strict=False):
            credited.add_ticks(at, given, opening, ticks.entry_of, self.is_open)
        for column, numbers in zip(self._flat, (ticks.t_env, ticks.t_agent), strict=True):
            column[at[1:][decided]] = numbers[decided]
        lanes, when = np.nonzero((ended & is_open).T)
        stop = cells[when, lanes] + 1
        is_first = np.diff(lanes, prepend=-1) != 0
        start = np.where(is_first, self._start[lanes], np.roll(stop, 1))
        self._cell[:] = cells[-1] + ~self.is_open
        self._start[lanes] = stop
        return cells, EndsOfRows(lanes, when, start, stop, self._carried[lanes] & (start == 0))

    def add_segments(self, policy: str, segments: Segments, lanes: Array) -> None:
        """Add segments that ended, with the lane of each."""
        self._ended.setdefault(policy, []).append((segments, lanes))

    def add(self, lanes: Array | None, rewards: Array, infos: Array | None) -> None:
        """Add to the open rows of `lanes`, which may repeat; None: of all lanes.

        `infos` [S, N] begin with the columns of rows, NaN where there is no number.
        """
        self._rewards.add(lanes, rewards)
        if infos is not None:
            for credited, amounts in zip(self._columns.values(), infos, strict=False):
                known = ~np.isnan(amounts)
                credited.add(np.flatnonzero(known) if lanes is None else lanes[known], amounts[known])

    def add_late_rewards(self, lanes: Array, rewards: Array) -> None:
        """Add rewards of dead agents, which belong to no row, to `reward_unattributed`."""
        self._rewards.add_unattributed(lanes, rewards)

    def end_segments(
        self, lanes: Array, rows: Array, terminated: Array, episode: Array, acting: ActingPolicy, finals: Finals | None
    ) -> None:
        """End the trajectories of N lanes of one policy, which have open rows.

        `rows` int64 are their rows in its buffer, `terminated` bool (the others were truncated), `episode` int64, [N].
        `finals` may be None if the policy is not recorded.
        """
        cell, start = self._cell[lanes], self._start[lanes]
        self._complete(lanes, cell)
        self._start[lanes] = cell + 1
        if acting.buffer is None or finals is None:
            return
        seen, missing = dict(finals.seen), finals.missing
        if acting.memory is not None:
            seen["memory"] = acting.memory.recall(lanes if missing is None else lanes[~missing])
        if missing is not None:
            # Without a final observation, bootstrap from the last one and the memory before it.
            for name in seen.keys() - {"state"}:
                at_last = acting.buffer.data[name][rows, cell]
                at_last[~missing] = seen[name]
                seen[name] = at_last
        if "action_mask" in seen:
            seen["action_mask"] = acting.buffer.legal_after(rows, cell, seen["action_mask"])
        carried = self._carried[lanes] & (start == 0)
        segments = Segments(rows, start, cell + 1, terminated, ~terminated, carried, episode, seen)
        self.add_segments(acting.policy, segments, lanes)

    def end_episode(self, lanes: slice | Array) -> None:
        """End the episodes of `lanes`: rewards since the agents' ends belong to no row."""
        for credited in self._credited:
            credited.leave(lanes)

    def discard(self, lanes: slice, episode: int) -> int:
        """Discard the rows of a broken episode; return how many were recorded."""
        lost = 0
        for number, acting in enumerate(self._acting_policies):
            if acting.buffer is None:
                continue
            played = np.flatnonzero(self._entry_of[lanes] == number) + lanes.start
            # The rows of the running segment, then the ended segments of the same episode.
            lost += int((self._cell[played] - self._start[played] + self.is_open[played]).sum())
            for segments, of_lanes in self._ended.pop(acting.policy, []):
                is_lost = (of_lanes >= lanes.start) & (of_lanes < lanes.stop) & (segments.episode == episode)
                lost += int((segments.stop - segments.start)[is_lost].sum())
                self.add_segments(acting.policy, segments.take(~is_lost), of_lanes[~is_lost])
        # Discarded cells stay unused until the next cut.
        self._cell[lanes] += self.is_open[lanes]
        self._start[lanes] = self._cell[lanes]
        self.is_open[lanes] = False
        self._carried[lanes] &= self._start[lanes] > 0
        for credited in self._credited:
            credited.open[lanes] = 0.0
        return lost

    def drop_open(self, lanes: Array) -> None:
        """Drop the open rows of `lanes` after a cut; their rewards so far belong to no row."""
        self.is_open[lanes] = self._carried[lanes] = False

    def cut(self, episodes: Array) -> dict[str, tuple[PolicyReceipt, Batch]]:
        """Return all complete rows of recorded policies; carry open rows into the next fragment.

        `episodes` [lanes] has the running episodes.
        """
        for acting in self._acting_policies:
            lanes = acting.lanes[self.is_open[acting.lanes]]
            self._complete(lanes, self._cell[lanes])
        # As in `open_next`: rewards without an open row.
        idle = np.flatnonzero(~self.is_open)
        for credited in self._credited:
            credited.leave(idle)
        cuts = {
            acting.policy: self._cut(number, acting, acting.buffer, episodes)
            for number, acting in enumerate(self._acting_policies)
            if acting.buffer is not None
        }
        for credited in self._credited:
            credited.unattributed[:] = 0.0
        self._carry()
        return cuts

    def _complete(self, lanes: Array, cell: Array) -> None:
        """Complete the open rows of `lanes`, which are in `cell`."""
        at, was_open = lanes * self._capacity + cell, np.ones(len(lanes), bool)
        for credited in self._credited:
            credited.close(lanes, at, was_open)
        self.is_open[lanes] = False
        self._cell[lanes] = cell + 1

    def _cut(
        self, number: int, acting: ActingPolicy, buffer: StepBuffer, episodes: Array
    ) -> tuple[PolicyReceipt, Batch]:
        running = self._running(number, acting, buffer, episodes)
        ended = [segments for segments, _ in self._ended.pop(acting.policy, [])]
        segments = Segments.concat([*ended, running]) if ended else running
        lanes = buffer.lanes[segments.row]
        # Sorted by lane, because the order of rows depends on which lane a policy played first.
        order = np.lexsort((segments.start, lanes))
        segments, lanes = segments.take(order), lanes[order]
        length = segments.stop - segments.start
        rows = buffer.cut(segments)
        at = ranges(lanes * self._capacity + segments.start, length)
        rows["reward"] = self._rewards.take(at)
        for name in acting.info_columns:
            rows[name] = self._columns[name].take(at)
        rows["t_env"], rows["t_agent"] = (column.take(at) for column in self._flat)
        # A carried row was acted on by the version of an earlier collect.
        rows["version"] = np.full(len(at), acting.version, np.int64)
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
            **{BOOTSTRAPS[name]: column for name, column in segments.bootstrap.items()},
        }
        if acting.memory is not None:
            table |= {"memory": rows["memory"][firsts], "memory_version": rows.pop("memory_version")[firsts]}
        reward = float(self._rewards.unattributed[number])
        infos = {n: float(self._columns[n].unattributed[number]) for n in acting.info_columns if self._columns[n].adds}
        return PolicyReceipt(len(at), int(carried.sum()), reward, acting.version, (), infos), Batch(rows, table)

    def _running(self, number: int, acting: ActingPolicy, buffer: StepBuffer, episodes: Array) -> Segments:
        """Return the unfinished segments, bootstrapped from the pending observation or open row."""
        lanes = buffer.lanes
        row = np.flatnonzero((self._cell[lanes] > self._start[lanes]) & (self._entry_of[lanes] == number))
        lanes = lanes[row]
        start, stop = self._start[lanes], self._cell[lanes]
        # Position of each row's pending observation; -1 for a lane with an open row, which waits for its next turn.
        pending_of_row = np.full(buffer.rows, -1)
        pending_of_row[acting.rows] = np.arange(len(acting.rows))
        pending_of_row = pending_of_row[row]
        has_open_row = pending_of_row < 0
        bootstrap = {}
        now = acting.seen if acting.memory is None else {**acting.seen, "memory": acting.memory.recall(acting.lanes)}
        for name, seen in now.items():
            bootstrap[name] = column = np.empty((len(row), *seen.shape[1:]), seen.dtype)
            column[~has_open_row] = seen[pending_of_row[~has_open_row]]
            column[has_open_row] = buffer.data[name][row[has_open_row], stop[has_open_row]]
        never = np.zeros(len(row), bool)
        carried = self._carried[lanes] & (start == 0)
        return Segments(row, start, stop, never, never, carried, episodes[lanes], bootstrap)

    def _carry(self) -> None:
        for number, acting in enumerate(self._acting_policies):
            buffer = acting.buffer
            if buffer is None:
                # Not used: the policy is not recorded.
                self._carried_version[self.is_open & (self._entry_of == number)] = -1
                continue
            row, lanes = self._open_of(number, buffer)
            cell = self._cell[lanes]
            buffer.carry(row, cell)
            # A row that stayed open over a whole fragment keeps the version that acted.
            again = self._carried[lanes] & (cell == 0)
            self._carried_version[lanes] = np.where(again, self._carried_version[lanes], acting.version)
        open_lanes = np.flatnonzero(self.is_open)
        for column in (self._t_env, self._t_agent):
            column[open_lanes, 0] = column[open_lanes, self._cell[open_lanes]]
        self._carried = self.is_open.copy()
        self._cell[:] = 0
        self._start[:] = 0

    def open_rows(self) -> dict[str, Array]:
        """Return the open rows after a `cut`, by `lane`, without observations and actions."""
        lanes = np.flatnonzero(self.is_open)
        return {
            "lane": lanes,
            "gained": self._rewards.open[lanes],
            **{name: credited.open[lanes] for name, credited in self._columns.items()},
            "t_env": self._t_env[lanes, 0],
            "t_agent": self._t_agent[lanes, 0],
            "version": self._carried_version[lanes],
        }

    def seen_in_open_rows(self, number: int, buffer: StepBuffer) -> dict[str, Array]:
        """Return entry `number`'s columns at its open rows, by `lane`."""
        row, lanes = self._open_of(number, buffer)
        row, lanes = row[np.argsort(lanes)], np.sort(lanes)
        return {"lane": lanes, **{name: column[row, 0] for name, column in buffer.data.items()}}

    def reopen(self, rows: Mapping[str, Array]) -> None:
        """Restore open rows, before any recording."""
        lanes = rows["lane"]
        self.is_open[lanes] = self._carried[lanes] = True
        self._rewards.open[lanes], self._carried_version[lanes] = rows["gained"], rows["version"]
        for name, credited in self._columns.items():
            # Numbers that were not read before are not known.
            credited.open[lanes] = rows.get(name, 0.0)
        self._t_env[lanes, 0], self._t_agent[lanes, 0] = rows["t_env"], rows["t_agent"]

    def _open_of(self, number: int, buffer: StepBuffer) -> tuple[Array, Array]:
        row = np.flatnonzero(self.is_open[buffer.lanes] & (self._entry_of[buffer.lanes] == number))
        return row, buffer.lanes[row]
