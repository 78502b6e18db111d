"""The program of a fragment: all environments, their actors, and resets, for many ticks in one call.

Arrays of agents are by slot, [B, A], as lanes are (lane = environment * A + slot). A *player* acts for some of them: a
policy, or a cohort of frozen ones. Its rows in a tick are its slots in all environments, [B * C]; in turn-based
environments one of each environment, whose turn it is, [B].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.info_columns import InfoColumn, InfoColumns
from marlflow.compiled.counter_random import Bits64, CounterRandom, mix, small
from marlflow.env.functional.calls import Carry, FunctionalCalls
from marlflow.policy.compiled_actor import CompiledActor, Given

ROWS_PER_END = 8
"""The least number of environments whose ends, or resets, share one iteration of a loop; it is an eighth, or a
sixteenth, of all environments if that is more.

A reset may take a hundred times as long as a step, and fewer episodes begin in a tick than agents end.
"""
_TICKS_PER_END = 8
"""Room for the ends of each environment in every eighth tick; when it is full, the call returns early."""


class Player(NamedTuple):
    """A policy, or a cohort of frozen ones, that acts: its number in the table, its actor, and the columns of its rows.

    `slots`: the agent slots that it may play, all of one observation and one action space.
    """

    number: int
    actor: CompiledActor
    slots: tuple[int, ...]
    is_recorded: bool
    masked: bool
    sees_state: bool
    members: int
    """The number of members of its network, one of which plays each row; 0: it is one policy."""
    first_action: Any
    """Added to its actions: the first of a Discrete or MultiDiscrete space."""


class Live(NamedTuple):
    """The state that a tick changes: the episodes, and the agents that act next. [B], and [B, A] by slot."""

    carry: Carry
    running: Any
    alive: Any
    decides: Any
    t_agent: Any
    keys: Bits64
    following: Any
    """The number of each environment's next episode."""
    left: Any
    """How many episodes may begin."""
    seat: Any
    """The position of the running episode's entries in `CallInputs.entries`."""
    memories: tuple[Any, ...]
    """By player, [B, C, *shape], or None."""


class CallInputs(NamedTuple):
    """The inputs of a call that stay the same in it. `streams` [B]: the key of (seed, environment)."""

    given: tuple[Given, ...]
    streams: Bits64
    env_indices: Any
    entries: Any
    """The number of each slot's player, [B, episodes, A]; `Live.seat` is which of the episodes runs."""
    members: Any
    """The member of each slot, if its player has several, [B, episodes, A]."""
    count: Any


class Columns(NamedTuple):
    """The results of the first `count` ticks: [T, B] and [T, B, A]; `players` by player, [T, rows] each."""

    count: Any
    running: Any
    decided: Any
    env_steps: Any
    t_agent: Any
    rewards: Any
    infos: Mapping[str, Any]
    """By info column that the environment gives."""
    terminated: Any
    truncated: Any
    ended: Any
    alive: Any
    """Whether agents lived before the tick."""
    over: Any
    """Whether the episode was over after the tick, [T, B]."""
    begun: Any
    is_stuck: Any
    seat: Any
    mover: Any
    final_at: Any
    """The place of a tick's final observations in `finals`, or a place beyond."""
    states: Any
    players: tuple[Mapping[str, Any], ...]
    finals: Mapping[str, Any]
    """By name: `obs.<group>` and `action_mask.<group>` [F, A, ...], `state` [F, S], `memory.<player>` [F, C, ...]."""


class FragmentProgram:
    """The compiled call for `num_envs` environments of `calls` and these players, of at most `ticks` ticks.

    `is_dealt`: whether each episode has its own policies and frozen entries.
    """

    def __init__(
        self,
        calls: FunctionalCalls,
        num_envs: int,
        columns: InfoColumns,
        is_dealt: bool,
        players: Sequence[Player],
        ticks: int,
    ) -> None:
        self.is_dealt = is_dealt
        self.calls, self.players, self.ticks = calls, list(players), ticks
        self._num_envs, self._num_agents, self._columns = num_envs, len(calls.agents), columns
        self._with_state = any(player.sees_state and player.is_recorded for player in players)
        self.turn_based = bool(calls.env.turn_based)
        self._room = num_envs * (2 + -(-ticks // _TICKS_PER_END))
        self._per_end = min(num_envs, max(ROWS_PER_END, num_envs // 8))
        self._per_reset = min(num_envs, max(ROWS_PER_END, num_envs // 16))
        self._slots_of = {
            name: np.array([calls.agents.index(agent) for agent in agents]) for name, agents in calls.groups.items()
        }
        # By slot: its position in its group.
        self._position = np.zeros(self._num_agents, np.int64)
        for slots in self._slots_of.values():
            self._position[slots] = np.arange(len(slots))
        self._actions_like = {
            name: (calls.env.action_space(agents[0]).shape or (), _action_type(calls.env.action_space(agents[0])))
            for name, agents in calls.groups.items()
        }
        self.run = jax.jit(self._run)

    def _run(self, live: Live, inputs: CallInputs) -> tuple[Live, Columns]:
        def shapes() -> Any:
            return self._tick(live, inputs)[1]

        row = jax.eval_shape(shapes)
        columns = jax.tree_util.tree_map(lambda leaf: jnp.zeros((self.ticks, *leaf.shape), leaf.dtype), row)
        finals = {
            name: jnp.zeros((self._room, *leaf.shape[1:]), leaf.dtype)
            for name, leaf in jax.eval_shape(self._final_rows, live).items()
        }
        final_at = jnp.full((self.ticks, self._num_envs), self._room, jnp.int32)

        def goes_on(now: Any) -> Any:
            tick, used, *_ = now
            return (tick < inputs.count) & (used + self._num_envs <= self._room)

        def body(now: Any) -> Any:
            tick, used, live, columns, finals, final_at = now
            live, row = self._tick(live, inputs)
            used, finals, at = self._end(live, row["ended"].any(1), used, finals)
            begins = row["over"] & (live.left > 0)
            live = self._begin(live._replace(running=live.running & ~(row["over"] & ~begins)), inputs, begins)
            row = {**row, "begun": begins}
            columns = jax.tree_util.tree_map(
                lambda column, leaf: jax.lax.dynamic_update_index_in_dim(column, leaf, tick, 0), columns, row
            )
            return tick + 1, used, live, columns, finals, final_at.at[tick].set(at)

        zero = jnp.zeros((), jnp.int32)
        tick, _, live, columns, finals, final_at = jax.lax.while_loop(
            goes_on, body, (zero, zero, live, columns, finals, final_at)
        )
        return live, Columns(count=tick, final_at=final_at, finals=finals, **columns)

    def _tick(self, live: Live, inputs: CallInputs) -> tuple[Live, dict[str, Any]]:
        """Let all players act and step the environments; ends are only marked, in `alive` and `decides`."""
        decided = live.decides & live.running[:, None]
        mover = jnp.argmax(decided, 1)
        states = jax.vmap(self.calls.state_of_one)(live.carry) if self._with_state else ()
        actions, memories, rows = self._act(live, inputs, decided, mover)
        carry, outcome = jax.vmap(self.calls.step_one)(live.carry, actions)
        terminated, truncated = self._by_slot(outcome.terminated, bool), self._by_slot(outcome.truncated, bool)
        ended = (terminated | truncated) & live.alive & live.running[:, None]
        alive = live.alive & ~ended
        decides = self._by_slot(carry.decides, bool) & alive if carry.decides else alive
        is_over = live.running & ~alive.any(1)
        row = {
            "running": live.running,
            "decided": decided,
            "env_steps": live.carry.env_steps,
            "t_agent": live.t_agent,
            "rewards": self._by_slot(outcome.rewards, jnp.float32),
            "infos": {
                column.name: self._info(column, outcome.infos[column.key], live.alive)
                for column in self._columns
                if column.key in outcome.infos
            },
            "terminated": terminated,
            "truncated": truncated,
            "ended": ended,
            "alive": live.alive,
            "over": is_over,
            "begun": live.running,
            "is_stuck": live.running & ~is_over & ~decides.any(1),
            "seat": live.seat,
            "mover": mover if self.turn_based else (),
            "states": states,
            "players": tuple(rows),
        }
        return (
            live._replace(
                carry=carry,
                alive=alive,
                decides=decides,
                t_agent=live.t_agent + decided,
                memories=tuple(memories),
            ),
            row,
        )

    def _info(self, column: InfoColumn, numbers: Mapping[str, Any], alive: Any) -> Any:
        by_slot = self._by_slot(numbers, jnp.float32)
        # Numbers of dead agents count only if they are added up, or say how an episode ended.
        return jnp.where(alive, by_slot, jnp.nan) if column.is_in_rows and not column.adds else by_slot

    def _act(
        self, live: Live, inputs: CallInputs, decided: Any, mover: Any
    ) -> tuple[dict[str, Any], list[Any], list[dict[str, Any]]]:
        """Return all actions by group, and for each player its memory and the returned columns of its rows."""
        envs = jnp.arange(self._num_envs)
        entries, members = inputs.entries[envs, live.seat], inputs.members[envs, live.seat]
        actions = {
            name: jnp.zeros((self._num_envs, len(slots), *self._actions_like[name][0]), self._actions_like[name][1])
            for name, slots in self._slots_of.items()
        }
        memories, rows = [], []
        for number, player in enumerate(self.players):
            seen = self._seen(player, live.carry, mover)
            active = self._rows(player, decided & (entries == player.number), mover)
            keys = Bits64(*(self._rows(player, half, mover) for half in live.keys))
            random = CounterRandom(
                keys, self._rows(player, live.t_agent, mover), self._env_rows(player, inputs.env_indices)
            )
            before = live.memories[number]
            recalled = None if before is None else self._memory_rows(player, before, mover)
            what_is_seen = seen["obs"], seen.get("action_mask"), recalled, random
            if player.members:
                mine = self._rows(player, members, mover)
                chosen, after = player.actor.act_as(inputs.given[number], mine, active, *what_is_seen)
            else:
                chosen, after = player.actor.act(inputs.given[number], *what_is_seen)
            memories.append(None if before is None else self._with_memory(player, before, after, active, mover))
            self._put_actions(player, actions, chosen.action, active, mover)
            returned = {"active": active, "is_sound": chosen.is_sound | ~active}
            if player.is_recorded:
                returned |= {**seen, "action": chosen.action, "behavior_logp": chosen.logp}
                if recalled is not None:
                    returned["memory"] = recalled
            else:
                returned["is_seen_sound"] = _are_sound(seen)
            rows.append(returned)
        return actions, memories, rows

    def _end(self, live: Live, ending: Any, used: Any, finals: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Keep the final observations of agents that ended, in the environments `ending`, and their places."""

        def some(now: Any) -> Any:
            ending, used, finals, final_at = now
            at, is_real = self._some_of(ending, self._per_end)
            place = jnp.where(is_real, used + jnp.arange(self._per_end), self._room)
            chosen = jax.tree_util.tree_map(lambda leaf: leaf.at[at].get(mode="clip"), self._final_rows(live))
            finals = {name: finals[name].at[place].set(chosen[name], mode="drop") for name in finals}
            left = ending.at[at].set(False, mode="drop")
            return left, used + is_real.sum(), finals, final_at.at[at].set(place, mode="drop")

        nowhere = jnp.full(self._num_envs, self._room, jnp.int32)
        _, used, finals, final_at = jax.lax.while_loop(lambda now: now[0].any(), some, (ending, used, finals, nowhere))
        return used, finals, final_at

    def _begin(self, live: Live, inputs: CallInputs, begins: Any) -> Live:
        """Begin the next episodes of the environments `begins`."""

        def some(now: Any) -> Any:
            begins, live = now
            at, _ = self._some_of(begins, self._per_reset)
            return begins.at[at].set(False, mode="drop"), self._begin_at(live, inputs, at)

        return jax.lax.while_loop(lambda now: now[0].any(), some, (begins, live))[1]

    def _some_of(self, envs: Any, count: int) -> tuple[Any, Any]:
        """Return the first `count` environments in `envs`, bool [B], and which exist; others are beyond the last."""
        (at,) = jnp.nonzero(envs, size=count, fill_value=self._num_envs)
        return at, at < self._num_envs

    def _begin_at(self, live: Live, inputs: CallInputs, at: Any) -> Live:
        """Begin the next episodes in the environments `at` [K]; indices beyond the last environment are ignored."""
        clipped = jnp.minimum(at, self._num_envs - 1)
        number = live.following[clipped]
        # Numbers are below 2**32: one worker of a run never has more episodes of one environment.
        key = mix(inputs.streams.at(clipped) + small(number))
        new = jax.vmap(self.calls.begin_one)(key.high >> 1)
        slots = small(jnp.arange(self._num_agents))
        keys = mix(Bits64(key.high[:, None], key.low[:, None]) + slots)

        def put(old: Any, value: Any) -> Any:
            return old.at[at].set(value, mode="drop")

        alive = jnp.ones((len(at), self._num_agents), bool)
        return Live(
            carry=jax.tree_util.tree_map(put, live.carry, new),
            running=live.running,
            alive=put(live.alive, alive),
            decides=put(live.decides, self._by_slot(new.decides, bool) if new.decides else alive),
            t_agent=put(live.t_agent, 0),
            keys=Bits64(put(live.keys.high, keys.high), put(live.keys.low, keys.low)),
            following=put(live.following, number + 1),
            left=put(live.left, live.left[clipped] - 1),
            seat=put(live.seat, live.seat[clipped] + int(self.is_dealt)),
            memories=tuple(None if memory is None else put(memory, 0.0) for memory in live.memories),
        )

    def _final_rows(self, live: Live) -> dict[str, Any]:
        """Return the current observations and memories of players whose rows are returned, by name, [B, ...]."""
        found: dict[str, Any] = {}
        recorded = [player for player in self.players if player.is_recorded]
        for name, slots in self._slots_of.items():
            if any(set(player.slots) & set(slots.tolist()) for player in recorded):
                found[f"obs.{name}"] = live.carry.observations[name]
                if name in live.carry.masks:
                    found[f"action_mask.{name}"] = live.carry.masks[name]
        if self._with_state:
            found["state"] = jax.vmap(self.calls.state_of_one)(live.carry)
        for number, player in enumerate(self.players):
            if player.is_recorded and live.memories[number] is not None:
                found[f"memory.{player.number}"] = live.memories[number]
        return found

    def _seen(self, player: Player, carry: Carry, mover: Any) -> dict[str, Any]:
        """Return the observations, and masks, of a player's rows."""
        seen = {"obs": self._of_groups(player, carry.observations, mover)}
        if player.masked:
            masks = dict(carry.masks)
            for name, slots in self._slots_of.items():
                if name not in masks and set(player.slots) & set(slots.tolist()):
                    width = next(iter(carry.masks.values())).shape[2]
                    masks[name] = jnp.ones((self._num_envs, len(slots), width), bool)
            seen["action_mask"] = self._of_groups(player, masks, mover)
        return seen

    def _of_groups(self, player: Player, arrays: Mapping[str, Any], mover: Any) -> Any:
        """Return the player's rows of arrays [B, A of the group, ...]."""
        if self.turn_based:
            found: Any = None
            for name, slots in self._slots_of.items():
                if set(player.slots) & set(slots.tolist()):
                    position = jnp.asarray(self._position)[mover]
                    rows = arrays[name].at[jnp.arange(self._num_envs), position].get(mode="clip")
                    is_here = jnp.isin(mover, slots).reshape(-1, *[1] * (rows.ndim - 1))
                    found = rows if found is None else jnp.where(is_here, rows, found)
            return found
        parts = [arrays[name][:, positions] for name, positions in self._parts(player)]
        whole = parts[0] if len(parts) == 1 else jnp.concatenate(parts, 1)
        return whole.reshape(-1, *whole.shape[2:])

    def _parts(self, player: Player) -> list[tuple[str, Any]]:
        """Return the groups of a player's slots, in order, each with the positions of the slots in it."""
        found: list[tuple[str, Any]] = []
        for name, slots in self._slots_of.items():
            mine = [slot for slot in player.slots if slot in slots.tolist()]
            if len(mine) == len(slots):
                found.append((name, slice(None)))
            elif mine:
                found.append((name, self._position[mine]))
        return found

    def final_rows(self, name: str, finals: Mapping[str, Array], place: Array, slot: Array) -> Array | None:
        """Return the final observations of the slots [N], at a `place` [N] of `finals`, by numpy.

        `name` is `obs` or `action_mask`; where a group has no mask, all is legal; None if no group has one.
        """
        rows: Array | None = None
        for group, slots in self._slots_of.items():
            here = np.flatnonzero(np.isin(slot, slots))
            if len(here) and (array := finals.get(f"{name}.{group}")) is not None:
                found = array[place[here], self._position[slot[here]]]
                if rows is None:
                    rows = np.ones((len(slot), *found.shape[1:]), found.dtype)
                rows[here] = found
        return rows

    def order(self, player: Player) -> Array:
        """Return the slots of a player, in the order of its rows."""
        slots = [self._slots_of[name][positions] for name, positions in self._parts(player)]
        return np.concatenate(slots)

    def _rows(self, player: Player, by_slot: Any, mover: Any) -> Any:
        if self.turn_based:
            return by_slot[jnp.arange(self._num_envs), mover]
        return by_slot[:, self.order(player)].reshape(-1)

    def _env_rows(self, player: Player, by_env: Any) -> Any:
        return by_env if self.turn_based else jnp.repeat(by_env, len(player.slots))

    def _memory_rows(self, player: Player, memory: Any, mover: Any) -> Any:
        if self.turn_based:
            return memory[jnp.arange(self._num_envs), self._column(player, mover)]
        return memory.reshape(-1, *memory.shape[2:])

    def _with_memory(self, player: Player, memory: Any, after: Any, active: Any, mover: Any) -> Any:
        mine = active.reshape(-1, *[1] * (after.ndim - 1))
        if self.turn_based:
            envs, column = jnp.arange(self._num_envs), self._column(player, mover)
            return memory.at[envs, column].set(jnp.where(mine, after, memory[envs, column]))
        return jnp.where(mine, after, memory.reshape(after.shape)).reshape(memory.shape)

    def column(self, player: Player) -> Array:
        """Return each slot's position among the player's, [A]; 0 for the slots of others."""
        column = np.zeros(self._num_agents, np.int64)
        column[self.order(player)] = np.arange(len(player.slots))
        return column

    def _column(self, player: Player, mover: Any) -> Any:
        return jnp.asarray(self.column(player))[mover]

    def _put_actions(self, player: Player, actions: dict[str, Any], chosen: Any, active: Any, mover: Any) -> None:
        """Write a player's actions into `actions`, by group."""
        chosen = chosen + player.first_action
        if self.turn_based:
            envs, position = jnp.arange(self._num_envs), jnp.asarray(self._position)[mover]
            for name, _ in self._parts(player):
                slots = self._slots_of[name]
                mine = (active & jnp.isin(mover, slots)).reshape(-1, *[1] * (chosen.ndim - 1))
                at = jnp.minimum(position, len(slots) - 1)
                old = actions[name][envs, at]
                actions[name] = actions[name].at[envs, at].set(jnp.where(mine, chosen.astype(old.dtype), old))
            return
        chosen = chosen.reshape(self._num_envs, len(player.slots), *chosen.shape[1:])
        mine = active.reshape(self._num_envs, len(player.slots), *[1] * (chosen.ndim - 2))
        start = 0
        for name, positions in self._parts(player):
            old = actions[name][:, positions]
            part = slice(start, start + old.shape[1])
            new = jnp.where(mine[:, part], chosen[:, part].astype(old.dtype), old)
            actions[name] = actions[name].at[:, positions].set(new)
            start = part.stop

    def _by_slot(self, by_group: Mapping[str, Any], dtype: Any) -> Any:
        """Return numbers [B, A of the group] by slot, [B, A]."""
        if len(by_group) == 1 and len(self._slots_of) == 1:
            ((name, slots),) = self._slots_of.items()
            if (slots == np.arange(self._num_agents)).all():
                return by_group[name].astype(dtype)
        first = next(iter(by_group.values()))
        found = jnp.zeros((first.shape[0], self._num_agents), dtype)
        for name, slots in self._slots_of.items():
            if name in by_group:
                found = found.at[:, slots].set(by_group[name].astype(dtype))
        return found


def _are_sound(seen: Mapping[str, Any]) -> Any:
    """Return whether the observation of each row is finite, and its mask allows an action, [N]."""
    obs = seen["obs"]
    sound = jnp.isfinite(obs).reshape(len(obs), -1).all(1)
    return sound & seen["action_mask"].any(1) if "action_mask" in seen else sound


def _action_type(space: spaces.Space[Any]) -> Any:
    return jax.dtypes.canonicalize_dtype(np.int64 if isinstance(space, spaces.Discrete) else space.dtype)
