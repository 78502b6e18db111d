"""The lanes of a worker, one per agent slot of each environment, with rewards and infos for their open rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.info_columns import NO_COLUMNS, InfoColumns
from marlflow.base.random import key
from marlflow.env import EnvAdapter
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.env_source import EnvSource, lanes_in, too_many_agents
from marlflow.sampling.episodes import EpisodeSource
from marlflow.sampling.mapping import PolicyOf
from marlflow.sampling.protocol import Matchup
from marlflow.sampling.weights_table import WeightsTable

_FEW = 4

NO_EPISODE = -1
"""The episode number of lanes between two episodes."""


class Lanes:
    """All lanes of `num_envs` environments: lane = environment index * stride + agent slot; arrays are [lanes]."""

    def __init__(
        self,
        stride: int,
        num_envs: int,
        table: WeightsTable,
        policy_of: PolicyOf,
        columns: InfoColumns = NO_COLUMNS,
    ) -> None:
        count = stride * num_envs
        self.stride = stride
        self.table, self.policy_of = table, policy_of
        self.entry_of = np.full(count, -1)
        # Each lane's row in its policy's buffer, or its member's slot in a cohort.
        self.row_of = np.zeros(count, np.int64)
        self.env_of = np.repeat(np.arange(num_envs), stride)
        self.keys = np.zeros(count, np.uint64)
        self.t_agent = np.zeros(count, np.int64)
        self.returns = np.zeros(count, np.float64)
        self.columns = columns
        # The value of each info column so far in the episode, [K, lanes]; NaN if there is none.
        self.infos = np.full((len(columns), count), np.nan)
        self.has_infos = False
        self.episode = np.zeros(count, np.int64)
        # Number of agents per environment that have a policy.
        self.num_assigned = [0] * num_envs
        self.matchups: list[Matchup] = [{}] * num_envs
        self._checked: set[tuple[str, str]] = set()

    @property
    def is_read(self) -> Array | None:
        """Whether each lane's stepped info columns are read, bool [S, lanes]; None if there are none."""
        return self.read_by(self.entry_of) if self.columns.stepped else None

    def read_by(self, entry_of: Array) -> Array:
        """Return whether stepped columns of lanes with these acting policies are read, bool [S, *shape of `entry_of`].

        A column that belongs in rows is read if the policy's rows have it; for a lane without a policy, if any policy's
        rows have it. Other columns are always read.
        """
        policies, by_entry = self.table.acting_policies, []
        for column in self.columns.stepped:
            of_entries = [not column.is_in_rows or column.name in acting.info_columns for acting in policies]
            # The last element is for lanes without a policy, whose number is -1.
            by_entry.append([*of_entries, any(of_entries)])
        is_read: Array = np.array(by_entry)[:, entry_of]
        return is_read

    def add(self, lanes: Array | None, rewards: Array, infos: Array | None = None) -> None:
        """Add to the returns, and info columns if given [S, N], of `lanes`, which may repeat; None: of all lanes."""
        add_to(self.returns, lanes, rewards)
        if infos is not None:
            self.has_infos = True
            for column, total, given in zip(self.columns.stepped, self.infos, infos, strict=False):
                known = ~np.isnan(given)
                at = np.flatnonzero(known) if lanes is None else lanes[known]
                if column.adds:
                    total[at] = np.nan_to_num(total[at])
                    np.add.at(total, at, given[known])
                else:
                    total[at] = given[known]

    def set_last(self, lanes: Array, last: Array) -> None:
        """Set the info columns that are read at an end, [L, N], of `lanes` [N]; NaN changes nothing."""
        self.has_infos = True
        for column, given in zip(self.infos[len(self.columns.stepped) :], last, strict=True):
            known = ~np.isnan(given)
            column[lanes[known]] = given[known]

    def forget(self, lanes: Array | slice) -> None:
        """Begin the sums of `lanes` again."""
        self.returns[lanes] = 0.0
        if self.has_infos:
            self.infos[:, lanes] = np.nan

    def of(self, index: int) -> slice:
        """Return the lanes of one environment."""
        return slice(index * self.stride, (index + 1) * self.stride)

    def begin(
        self, index: int, episode: int, matchup: Matchup | None, adapter: EnvAdapter, episodes: EpisodeSource
    ) -> None:
        """Start an episode; without a `matchup`, declared agents keep their policies."""
        lanes = self.of(index)
        self._start(lanes, episode)
        if matchup is not None or not adapter.declared:
            self.matchups[index], self.num_assigned[index] = matchup or {}, 0
        for slot in range(self.num_assigned[index]):
            self.keys[lanes.start + slot] = episodes.stream(index, episode, _stream_number(adapter, slot))
        self.assign_new_agents(index, adapter, episodes)

    def begin_many(
        self, indices: Array, numbers: Array, envs: EnvSource, episodes: EpisodeSource
    ) -> dict[int, EnvironmentFailed]:
        """Start the episodes `numbers` [N] in `indices` [N]; return the failures, by environment."""
        kept, failed = [], {}
        # One by one, few are quicker.
        many = len(indices) > _FEW and envs.first.declared
        for at, (index, episode) in enumerate(zip(indices.tolist(), numbers.tolist(), strict=True)):
            matchup = episodes.matchup(index, episode)
            if many and matchup is None and self.num_assigned[index]:
                kept.append(at)
                continue
            try:
                self.begin(index, episode, matchup, envs.adapters[index], episodes)
            except EnvironmentFailed as failure:
                failed[index] = failure
        if kept:
            # The agents keep their policies, so nothing depends on one agent or environment.
            indices, numbers = indices[kept], numbers[kept]
            lanes = lanes_in(indices, self.stride)
            self._start(lanes, np.repeat(numbers, self.stride))
            self.keys[lanes] = episodes.streams(indices, numbers, self.stride).reshape(-1)
        return failed

    def _start(self, lanes: Array | slice, episode: Array | int) -> None:
        self.episode[lanes] = episode
        self.forget(lanes)
        self.t_agent[lanes] = 0
        # Any policy may play these lanes in the new episode.
        for acting in self.table.acting_policies:
            if acting.memory is not None:
                acting.memory.begin(lanes)

    def assigned_in(self, indices: Iterable[int]) -> Array:
        """Return the lanes of `indices` that have a policy."""
        lanes = [np.arange(self.num_assigned[index]) + index * self.stride for index in indices]
        return np.concatenate(lanes) if lanes else np.empty(0, np.int64)

    def abandon(self, index: int) -> None:
        """Discard an environment's episode."""
        self.matchups[index], self.num_assigned[index] = {}, 0
        self.episode[self.of(index)] = NO_EPISODE

    def assign_joined(
        self, envs: EnvSource, episodes: EpisodeSource, broken: Collection[int]
    ) -> dict[int, EnvironmentFailed]:
        """Assign policies to agents that joined running episodes, except `broken` ones; return the failures."""
        failed = {}
        for index in np.flatnonzero(envs.is_running).tolist():
            if index not in broken and len(envs.adapters[index].agents) > self.num_assigned[index]:
                try:
                    self.assign_new_agents(index, envs.adapters[index], episodes)
                except EnvironmentFailed as failure:
                    failed[index] = failure
        return failed

    def assign_new_agents(self, index: int, adapter: EnvAdapter, episodes: EpisodeSource) -> None:
        """Assign policies to an environment's new agents."""
        first, agents = index * self.stride, adapter.agents
        if len(agents) > self.stride:
            raise EnvironmentFailed(adapter.where(), too_many_agents(self.stride))
        for slot in range(self.num_assigned[index], len(agents)):
            lane = first + slot
            agent = agents[slot]
            entry = self.matchups[index].get(agent) or self.policy_of(agent)
            if (seat := self.table.seat(entry, lane)) is None:
                reason = f"it is mapped to policy {entry!r}, which plays no agent of the episode's start"
                raise EnvironmentFailed(adapter.where(agent), reason)
            self._check_spaces(agent, adapter, self.table.acting_policies[seat.number])
            # A matchup is shared between environments, so it is replaced, not changed.
            if entry is not None and agent not in self.matchups[index]:
                self.matchups[index] = {**self.matchups[index], agent: entry}
            self.entry_of[lane], self.row_of[lane] = seat
            self.keys[lane] = episodes.stream(index, int(self.episode[first]), _stream_number(adapter, slot))
        self.num_assigned[index] = len(agents)

    def seat_all(self, entry_of: Array, members: Array) -> None:
        """Seat the entries `entry_of` [lanes] in all lanes; `members` [lanes] has rows of lanes without a buffer."""
        self.entry_of[:], self.row_of[:] = entry_of, members
        for number, acting in enumerate(self.table.acting_policies):
            if acting.buffer is not None:
                lanes = np.flatnonzero(entry_of == number)
                self.row_of[lanes] = [acting.buffer.row(lane) for lane in lanes.tolist()]
        self.num_assigned = [self.stride] * len(self.num_assigned)

    def _check_spaces(self, agent: str, adapter: EnvAdapter, acting: ActingPolicy) -> None:
        if (agent, acting.policy) in self._checked:
            return
        spaces = adapter.observation_space(agent), adapter.action_space(agent)
        if spaces != (acting.spaces.observation, acting.spaces.action):
            reason = f"its spaces {spaces} differ from the spaces of its policy {acting.policy!r}"
            raise EnvironmentFailed(adapter.where(agent), reason)
        self._checked.add((agent, acting.policy))


def _stream_number(adapter: EnvAdapter, slot: int) -> int:
    """Return an agent's stream number: its slot, or its name's hash if undeclared."""
    return slot if adapter.declared else key(*adapter.agents[slot].encode())


class Credited:
    """The rewards, or an info column, of all lanes: `open` [lanes] is what their open rows have received so far.

    `entry_of` [lanes] has each lane's acting policy by number (-1: none). Amounts that belong to no row are added to
    `unattributed` [entries + 1], whose last element is for lanes without a policy. If `adds` is false, a row has the
    last amount instead of the sum, and amounts that belong to no row are dropped.
    """

    __slots__ = ("_cells", "_entry_of", "_flat", "adds", "open", "unattributed")

    def __init__(self, entry_of: Array, num_entries: int, adds: bool = True) -> None:
        self._entry_of, self.adds = entry_of, adds
        self.open = np.zeros(len(entry_of), np.float64)
        self._cells: Array = np.zeros((len(entry_of), 0), np.float64)
        # A flat view: numpy writes with one index array several times as fast as with two.
        self._flat: Array = self._cells.reshape(-1)
        self.renumber(num_entries)

    def renumber(self, num_entries: int) -> None:
        """Resize for a table of `num_entries` entries, after a cut."""
        self.unattributed = np.zeros(num_entries + 1, np.float64)

    def widen(self, missing: int) -> None:
        """Add room for `missing` rows per lane."""
        self._cells = np.pad(self._cells, ((0, 0), (0, missing)))
        self._flat = self._cells.reshape(-1)

    def add(self, lanes: Array | None, amounts: Array) -> None:
        """Add to the open rows of `lanes`, which may repeat; None: of all lanes."""
        if self.adds:
            add_to(self.open, lanes, amounts)
        else:
            self.open[slice(None) if lanes is None else lanes] = amounts

    def add_unattributed(self, lanes: Array | slice, amounts: Array) -> None:
        """Add amounts that belong to no row."""
        if not self.adds:
            return
        np.add.at(self.unattributed, self._entry_of[lanes], amounts)

    def close(self, lanes: Array, at: Array, was_open: Array) -> None:
        """Complete the open rows of `lanes`, in the flat cells `at`, and begin again with 0."""
        amounts = self.open[lanes]
        self._flat[at] = amounts
        if not was_open.all():
            # Received without an open row, such as before an agent's first action.
            self.add_unattributed(lanes, np.where(was_open, 0.0, amounts))
        self.open[lanes] = 0.0

    def add_ticks(self, at: Array, amounts: Array, is_open: Array, entry_of: Array, still: Array) -> None:
        """Add the amounts of T ticks, [T, lanes], to the rows in the flat cells `at` where `is_open`.

        `at` [T + 1, lanes] begins with the cells of the rows that were open before, where `is_open` [T + 1, lanes] says
        so. `still` [lanes]: whether the last row of a lane is still open. `entry_of` [T, lanes] has the lanes' policy
        slots in each tick. Amounts are NaN where there are none.
        """
        whole = np.concatenate([self.open[None], amounts])
        given = ~np.isnan(whole)
        received = is_open & given
        where = at[received]
        so_far: Array = np.zeros(len(self._flat))
        if self.adds:
            # bincount adds in the order of ticks, as one tick after the other does.
            so_far = np.bincount(where, whole[received], minlength=len(self._flat))
        else:
            so_far[where] = whole[received]
        self._flat[where] = so_far[where]
        self.open[:] = np.where(still, so_far[at[-1]], 0.0)
        missed = ~is_open & given & (whole != 0.0)
        if self.adds and missed.any():
            entries = np.concatenate([entry_of[:1], entry_of])
            np.add.at(self.unattributed, entries[missed], whole[missed])

    def leave(self, lanes: Array | slice) -> None:
        """Add the amounts that these lanes received since their rows were closed to `unattributed`."""
        amounts = self.open[lanes]
        if amounts.any():
            self.add_unattributed(lanes, amounts)
            self.open[lanes] = 0.0

    def take(self, at: Array) -> Array:
        """Return the amounts of the rows in the flat cells `at`."""
        return self._flat.take(at)


def add_to(totals: Array, lanes: Array | None, amounts: Array) -> None:
    """Add `amounts` to `totals` [lanes] at `lanes`, which may repeat; None: at all lanes."""
    if lanes is None:
        totals += amounts
    else:
        np.add.at(totals, lanes, amounts)
