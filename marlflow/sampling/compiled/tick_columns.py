"""The results of a compiled call as numpy arrays, and the part of them that counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.sampling.compiled.program import Columns, FragmentProgram, Player
from marlflow.sampling.compiled.seating import Seating
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.protocol import Matchup
from marlflow.sampling.segment_builder import Ticks


class Break(NamedTuple):
    """An environment that broke: its ticks count up to `stop`, exclusive.

    `is_after`: it broke by what the last of these ticks gave; else by what its agents saw after it.
    """

    stop: int
    is_after: bool
    failure: EnvironmentFailed

    @property
    def tick(self) -> int:
        """The tick of whose episode nothing is kept."""
        return self.stop - 1 if self.is_after else self.stop


class TickColumns:
    """The ticks of one call; lanes are those before it, and `following` [B] the episodes that were to come."""

    def __init__(
        self, program: FragmentProgram, columns: Columns, lanes: Lanes, following: Array, seating: Seating
    ) -> None:
        self.program, self.lanes, self._seating = program, lanes, seating
        self.ticks = int(columns.count)
        self.finals = {name: np.asarray(array) for name, array in columns.finals.items()}
        self.columns: Columns = jax.tree_util.tree_map(
            lambda array: np.asarray(array)[: self.ticks], columns._replace(count=(), finals={})
        )
        # The number of each slot's policy slots in each tick, [T, B, A].
        self.entry_of = seating.entries[np.arange(len(lanes.matchups)), self.columns.seat]
        begun = self.columns.begun
        # How many episodes had begun in the call before each tick, and after the last one.
        self.begun_before: Array = np.cumsum(begun, axis=0) - begun
        self.begun: Array = begun.sum(axis=0)
        first = lanes.episode[:: lanes.stride]
        self.episode: Array = np.where(self.begun_before == 0, first, following + self.begun_before - 1)
        self.last_episode: Array = np.where(self.begun == 0, first, following + self.begun - 1)

    @property
    def num_envs(self) -> int:
        """B."""
        return int(self.columns.running.shape[1])

    def matchups(self, tick: Array, index: Array) -> list[Matchup]:
        """Return the matchups of the environments `index` [N] in these ticks."""
        dealt, seat = self._seating.matchups, self.columns.seat[tick, index].tolist()
        return [
            dealt[env][at - 1] if at else self.lanes.matchups[env] for env, at in zip(index.tolist(), seat, strict=True)
        ]

    def places(self, player: Player) -> tuple[Array, Array]:
        """Return the environment and the agent slot of each of a player's rows, [T, rows]."""
        order = self.program.order(player)
        if self.program.turn_based:
            mover = self.columns.mover
            return np.broadcast_to(np.arange(self.num_envs), mover.shape), mover
        shape = self.ticks, self.num_envs * len(order)
        index, slot = np.repeat(np.arange(self.num_envs), len(order)), np.tile(order, self.num_envs)
        return np.broadcast_to(index, shape), np.broadcast_to(slot, shape)

    def counted(self, broken: Mapping[int, Break]) -> tuple[Array, Ticks]:
        """Return which environments ran, [T, B], and what lanes did: nothing of an environment after it broke."""
        columns, lanes = self.columns, self.lanes
        running, ended = columns.running.copy(), columns.ended.copy()
        rewards = np.where(running[..., None], columns.rewards, 0.0).astype(np.float64)
        infos = self._stepped()
        for index, broke in broken.items():
            running[broke.stop :, index] = False
            for array, nothing in ((ended, False), (rewards, 0.0), *((of_column, np.nan) for of_column in infos)):
                array[broke.tick :, index] = nothing
        by_lane = self.ticks, -1
        ticks = Ticks(
            (columns.decided & running[..., None]).reshape(by_lane),
            ended.reshape(by_lane),
            np.repeat(columns.env_steps, lanes.stride, axis=1),
            columns.t_agent.reshape(by_lane),
            rewards.reshape(by_lane),
            infos.reshape(len(infos), *rewards.reshape(by_lane).shape),
            self.entry_of.reshape(by_lane),
        )
        return running, ticks

    def _stepped(self) -> Array:
        """Return the stepped info columns, [S, T, B, A]; NaN where they are not read, or there is no number."""
        columns, lanes = self.columns, self.lanes
        stepped = np.full((len(lanes.columns.stepped), *columns.rewards.shape), np.nan)
        if len(stepped):
            is_read = columns.running[..., None] & lanes.read_by(self.entry_of)
            for number, column in enumerate(lanes.columns.stepped):
                if column.name in columns.infos:
                    given = columns.infos[column.name]
                    stepped[number] = np.where(is_read[number] & np.isfinite(given), given, np.nan)
        return stepped

    def infos(self, ticks: Ticks) -> Array:
        """Return the info columns of each agent in each episode of the call, [K, episodes, B, A], NaN where unknown."""
        lanes, known, totals = self.lanes, self.lanes.columns, []
        ended = ticks.ended.reshape(self.columns.ended.shape)
        for number, (column, carried) in enumerate(zip(known, lanes.infos, strict=True)):
            if number < len(known.stepped):
                amounts = ticks.infos[number]
            else:
                given = self.columns.infos.get(column.name, np.full(ended.shape, np.nan))
                # Agents that ended earlier learn how the episode ended, such as whether their team won. For them, a 0
                # may say that there is no number.
                is_told = ended | ((ended.any(2) & self.columns.over)[..., None] & (given != 0.0))
                amounts = np.where(is_told & np.isfinite(given), given, np.nan).reshape(len(ended), -1)
            totals.append(self._sums(carried, amounts) if column.adds else self._latest(carried, amounts))
        return np.stack(totals)

    def _sums(self, carried: Array, amounts: Array) -> Array:
        """Return `totals` of amounts that are NaN where there are none; so are sums of none."""
        count = self.totals(~np.isnan(carried), ~np.isnan(amounts))
        return np.where(count, self.totals(np.nan_to_num(carried), np.nan_to_num(amounts)), np.nan)

    def _latest(self, carried: Array, amounts: Array) -> Array:
        """Return the last amount of each agent in each episode of the call, [episodes, B, A]; NaN without any."""
        latest = np.full((int(self.begun.max(initial=0)) + 1, len(carried)), np.nan)
        latest[0] = carried
        tick, lane = np.nonzero(~np.isnan(amounts))
        # Later ticks replace earlier ones.
        latest[self.begun_before[tick, lane // self.lanes.stride], lane] = amounts[tick, lane]
        return latest.reshape(len(latest), self.num_envs, self.lanes.stride)

    def totals(self, carried: Array, amounts: Array) -> Array:
        """Return what each agent received in each episode of the call, [episodes, B, A], `carried` from before it."""
        lanes, most = len(self.lanes.entry_of), int(self.begun.max(initial=0)) + 1
        shape = most, self.num_envs, self.lanes.stride
        number = np.repeat(self.begun_before, self.lanes.stride, axis=1) * lanes + np.arange(lanes)
        where = np.concatenate([np.arange(lanes)[None], number])
        whole = np.concatenate([carried[None], amounts])
        # bincount adds in the order of ticks, as one tick after the other does.
        return np.bincount(where.ravel(), whole.ravel(), minlength=most * lanes).reshape(shape)


def taken(column: Array, where: Array) -> Array:
    """Return the rows of a column [T, rows, ...] `where` [T, rows] is true; not copied if that is everywhere."""
    rows: Array = column.reshape(-1, *column.shape[2:]) if where.all() else column[where]
    return rows
