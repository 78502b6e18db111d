"""The inputs and results of a compiled call: policies of episodes, results as numpy arrays, broken environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import jax
import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed, MarlflowError
from marlflow.env.batched.adapter import NOBODY_DECIDES
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.compiled.program import Columns, FragmentProgram, Player
from marlflow.sampling.episodes import TrainingEpisodes
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.protocol import Matchup
from marlflow.sampling.segment_builder import Ticks

Fits: TypeAlias = Callable[[str, int], bool]

_NO_LIMIT = 2**31 - 1
_FEWEST_EPISODES = 16


class Break(NamedTuple):
    """An environment that broke: its ticks count up to `stop`, exclusive.

    `is_after`: a reward or info of the last of these ticks broke it; else an observation after it.
    """

    stop: int
    is_after: bool
    failure: EnvironmentFailed

    @property
    def tick(self) -> int:
        """The tick of whose episode nothing is kept."""
        return self.stop - 1 if self.is_after else self.stop


class TickColumns:
    """The ticks of one call; lanes are as before the call, and `following` [B] are the next episodes then."""

    def __init__(
        self, program: FragmentProgram, columns: Columns, lanes: Lanes, following: Array, seating: Seating
    ) -> None:
        self.program, self.lanes, self._seating = program, lanes, seating
        self.ticks = int(columns.count)
        self.finals = {name: np.asarray(array) for name, array in columns.finals.items()}
        self.columns: Columns = jax.tree_util.tree_map(
            lambda array: np.asarray(array)[: self.ticks], columns._replace(count=(), finals={})
        )
        # The number of each slot's acting policy in each tick, [T, B, A].
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
        """Return which environments ran, [T, B], and the actions of lanes; nothing of an environment after it broke."""
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
                # Agents that ended earlier learn how the episode ended, such as whether their team won. For such
                # agents, 0 may mean that there is no number.
                is_told = ended | ((ended.any(2) & self.columns.over)[..., None] & (given != 0.0))
                amounts = np.where(is_told & np.isfinite(given), given, np.nan).reshape(len(ended), -1)
            totals.append(self._sums(carried, amounts) if column.adds else self._latest(carried, amounts))
        return np.stack(totals)

    def _sums(self, carried: Array, amounts: Array) -> Array:
        """Return `totals` of amounts, which are NaN where there is none; a sum without amounts is NaN too."""
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
        """Return the sum of each agent in each episode of the call, [episodes, B, A], with `carried` from before it."""
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


class Seating(NamedTuple):
    """`entries` and `members`, [B, E, A], by slot: the number of its acting policy, and its member in a cohort.

    The running episode is number 0 of E; if the agents keep their policies there is no other. `left` [B] is how many
    may begin. `matchups` has the next matchups, by environment.
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
    """Return the policies of a call of `ticks` ticks, with room for at least `room` episodes of each environment.

    `fits` says whether an agent has the spaces of the acting policy of this number.
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
                # The entry is missing, or has other spaces: the reset that begins its episode reports it.
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


class _Found(NamedTuple):
    tick: int
    env: int
    slot: int | None
    is_after: bool
    reason: str

    @property
    def stop(self) -> int:
        return self.tick + self.is_after


def breaks_in(
    fragment: TickColumns,
    acting_of: Callable[[Player], ActingPolicy],
    failure: Callable[[int, int | None, int, int, str], EnvironmentFailed],
) -> dict[int, Break]:
    """Return the environments that broke, by index, each with its first failure.

    `failure` makes the error of (environment, agent slot, episode, env steps, reason). Raises MarlflowError if a
    policy's outputs are not finite although its environment is sound.
    """
    found: dict[int, _Found] = {}
    for one in [*_outcomes(fragment), *_rows(fragment, acting_of)]:
        if one.env not in found or one.stop < found[one.env].stop:
            found[one.env] = one
    _check_choices(fragment, found)
    broken = {}
    for index, one in found.items():
        episode = int(fragment.episode[one.tick, index])
        env_steps = int(fragment.columns.env_steps[one.tick, index]) + one.is_after
        broken[index] = Break(one.stop, one.is_after, failure(index, one.slot, episode, env_steps, one.reason))
    return broken


def _outcomes(fragment: TickColumns) -> Iterator[_Found]:
    """Yield rewards and columns of infos that are not finite, and episodes that no agent can continue."""
    columns, lanes = fragment.columns, fragment.lanes
    running = columns.running[..., None]
    amounts = {"reward": (columns.rewards, running)}
    if in_rows := lanes.columns.in_rows:
        is_read = running & lanes.read_by(fragment.entry_of)
        for read, column in zip(is_read, in_rows, strict=False):
            # Columns that do not add up are NaN for dead agents.
            amounts[column.name] = columns.infos[column.name], read & (column.adds | columns.alive)
    for what, (array, is_read) in amounts.items():
        for tick, index, slot in np.argwhere(~np.isfinite(array) & is_read).tolist():
            reason = f"the {what} is {float(array[tick, index, slot])}, not a finite number"
            yield _Found(tick, index, slot, True, reason)
    for tick, index in np.argwhere(columns.is_stuck).tolist():
        yield _Found(tick, index, None, True, NOBODY_DECIDES)


def _rows(fragment: TickColumns, acting_of: Callable[[Player], ActingPolicy]) -> Iterator[_Found]:
    """Yield observations outside of their spaces, and masks without a legal action."""
    for number, player in enumerate(fragment.program.players):
        rows, (index_of, slot_of) = fragment.columns.players[number], fragment.places(player)
        if not player.is_recorded:
            for tick, row in np.argwhere(rows["active"] & ~rows["is_seen_sound"]).tolist():
                reason = "the observation is not finite, or the action_mask allows no action"
                yield _Found(tick, int(index_of[tick, row]), int(slot_of[tick, row]), False, reason)
            continue
        for at, reason in _unfit(acting_of(player), taken(rows["obs"], rows["active"])):
            tick, row = np.argwhere(rows["active"])[at].tolist()
            yield _Found(tick, int(index_of[tick, row]), int(slot_of[tick, row]), False, f"the {reason}")
        if "action_mask" in rows:
            for tick, row in np.argwhere(rows["active"] & ~rows["action_mask"].any(-1)).tolist():
                reason = "the action_mask allows no action"
                yield _Found(tick, int(index_of[tick, row]), int(slot_of[tick, row]), False, reason)
        yield from _final_rows(fragment, player, acting_of(player))


def _final_rows(fragment: TickColumns, player: Player, acting: ActingPolicy) -> Iterator[_Found]:
    ended = fragment.columns.ended & np.isin(np.arange(fragment.lanes.stride), player.slots)
    where = np.argwhere(ended)
    if not len(where):
        return
    tick, index, slot = where.T
    rows = fragment.program.final_rows("obs", fragment.finals, fragment.columns.final_at[tick, index], slot)
    assert rows is not None, "observations are kept"
    for at, reason in _unfit(acting, rows):
        yield _Found(int(tick[at]), int(index[at]), int(slot[at]), True, f"the final {reason}")


def _unfit(acting: ActingPolicy, observations: Array) -> Iterator[tuple[int, str]]:
    """Yield the numbers of the observations that are not in their space, and why not."""
    start = 0
    while start < len(observations):
        try:
            acting.stack(observations[start:])
            return
        except ObservationOutside as outside:
            yield start + outside.index, outside.reason
            start += outside.index + 1


def _check_choices(fragment: TickColumns, found: dict[int, _Found]) -> None:
    """Raise MarlflowError if a policy could not choose an action where nothing had broken before."""
    for number, player in enumerate(fragment.program.players):
        rows = fragment.columns.players[number]
        unsound = rows["active"] & ~rows["is_sound"]
        if not unsound.any():
            continue
        stops = np.full(fragment.num_envs, fragment.ticks)
        for index, one in found.items():
            stops[index] = one.stop
        if (np.argwhere(unsound)[:, 0] < stops[fragment.places(player)[0][unsound]]).any():
            raise MarlflowError(
                "cannot choose an action: a row has no legal action, or the network's output is not finite"
            )
