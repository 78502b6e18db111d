"""Find the environments that broke in a compiled call, from the arrays that it returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed, MarlflowError
from marlflow.env.batched.adapter import NOBODY_DECIDES
from marlflow.sampling.compiled.program import Player
from marlflow.sampling.compiled.tick_columns import Break, TickColumns, taken
from marlflow.sampling.policy_slots import PolicySlots


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
    slots_of: Callable[[Player], PolicySlots],
    failure: Callable[[int, int | None, int, int, str], EnvironmentFailed],
) -> dict[int, Break]:
    """Return the environments that broke, by index, each with its first failure.

    `failure` makes the error of (environment, agent slot, episode, env steps, reason). Raises MarlflowError if a
    policy's network gave no numbers in a sound environment.
    """
    found: dict[int, _Found] = {}
    for one in [*_outcomes(fragment), *_rows(fragment, slots_of)]:
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


def _rows(fragment: TickColumns, slots_of: Callable[[Player], PolicySlots]) -> Iterator[_Found]:
    """Yield observations outside of their spaces, and masks without a legal action."""
    for number, player in enumerate(fragment.program.players):
        rows, (index_of, slot_of) = fragment.columns.players[number], fragment.places(player)
        if not player.is_recorded:
            for tick, row in np.argwhere(rows["active"] & ~rows["is_seen_sound"]).tolist():
                reason = "the observation is not finite, or the action_mask allows no action"
                yield _Found(tick, int(index_of[tick, row]), int(slot_of[tick, row]), False, reason)
            continue
        for at, reason in _unfit(slots_of(player), taken(rows["obs"], rows["active"])):
            tick, row = np.argwhere(rows["active"])[at].tolist()
            yield _Found(tick, int(index_of[tick, row]), int(slot_of[tick, row]), False, f"the {reason}")
        if "action_mask" in rows:
            for tick, row in np.argwhere(rows["active"] & ~rows["action_mask"].any(-1)).tolist():
                reason = "the action_mask allows no action"
                yield _Found(tick, int(index_of[tick, row]), int(slot_of[tick, row]), False, reason)
        yield from _final_rows(fragment, player, slots_of(player))


def _final_rows(fragment: TickColumns, player: Player, slots: PolicySlots) -> Iterator[_Found]:
    ended = fragment.columns.ended & np.isin(np.arange(fragment.lanes.stride), player.slots)
    where = np.argwhere(ended)
    if not len(where):
        return
    tick, index, slot = where.T
    rows = fragment.program.final_rows("obs", fragment.finals, fragment.columns.final_at[tick, index], slot)
    assert rows is not None, "observations are kept"
    for at, reason in _unfit(slots, rows):
        yield _Found(int(tick[at]), int(index[at]), int(slot[at]), True, f"the final {reason}")


def _unfit(slots: PolicySlots, observations: Array) -> Iterator[tuple[int, str]]:
    """Yield the numbers of the observations that are not in their space, and why not."""
    start = 0
    while start < len(observations):
        try:
            slots.stack(observations[start:])
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
