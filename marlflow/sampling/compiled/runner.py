"""The environment loop of a worker whose fragments are one compiled call: its columns become rows by whole arrays.

Between two calls all state is where BatchedRunner keeps it, so that saving, resuming and matchups are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marlflow.base.batch import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed, MarlflowError, NotCompiled
from marlflow.base.random import keys
from marlflow.compiled.counter_random import bits64, uint64
from marlflow.env.batched.adapter import NOBODY_DECIDES
from marlflow.env.functional.batch import FunctionalBatch
from marlflow.policy.compiled_actor import CompiledActor
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.batched_results import Ended, results_of
from marlflow.sampling.batched_runner import BatchedRunner
from marlflow.sampling.compiled.program import Columns, FragmentProgram, Inputs, Live, Player
from marlflow.sampling.episodes import TrainingEpisodes
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.recurrent_memory import Memory
from marlflow.sampling.segment_builder import EndsOfRows, SegmentBuilder, Ticks
from marlflow.sampling.step_buffer import Segments

_NO_LIMIT = 2**31 - 1


class _Break(NamedTuple):
    """An environment that broke: its data count up to `stop`, exclusive; `is_after`: by what its last tick gave."""

    stop: int
    is_after: bool
    failure: EnvironmentFailed


class CompiledRunner(BatchedRunner):
    """Steps `envs` by `run`, which calls one program for many ticks.

    Raises NotCompiled if the environments or an actor cannot be compiled.
    """

    def __init__(
        self,
        envs: BatchedEnvPool,
        policy_slots: Sequence[PolicySlots],
        lanes: Lanes,
        episodes: TrainingEpisodes,
        builder: SegmentBuilder,
        seed: int,
    ) -> None:
        if not isinstance(envs.env, FunctionalBatch):
            raise NotCompiled("the environment is no functional one")
        super().__init__(envs, policy_slots, lanes, episodes, builder)
        self._rows_of, self._seed, self._training = builder, seed, episodes
        self._actors = {number: CompiledActor(slots.actor, slots.spaces.observation) for number, slots in enumerate(policy_slots)}
        self._program: FragmentProgram | None = None
        self._built_for: tuple[Any, ...] = ()
        self.compiles = 0

    def run(self, ticks: int, is_late: Callable[[], bool]) -> None:
        """Take `ticks` env steps in every environment, by one call or a few."""
        rest = ticks
        while rest > 0 and not self.idle:
            rest -= self._call(ticks, rest)
            # Environments that broke begin again.
            self.begin()
            if is_late():
                return

    def _call(self, most: int, count: int) -> int:
        """Take up to `count` ticks by one call; return how many."""
        program = self._program_for(most)
        began = perf_counter()
        live, inputs = self._live(program), self._inputs(program, count)

        def call() -> tuple[Live, Columns]:
            return jax.block_until_ready(program.run(live, inputs))  # type: ignore[no-any-return]

        after, columns = self._envs._guarded(call, "step()")
        self.env_s += perf_counter() - began
        taken = int(columns.count)
        self._land(program, after, _numpy(columns, taken))
        return taken

    def _program_for(self, most: int) -> FragmentProgram:
        players = self._players()
        key = (most, *((player.number, player.slots, player.masked) for player in players))
        if self._program is None or self._built_for != key:
            env, reads_costs = self._functional, self._envs.reads_costs
            self._program = FragmentProgram(env.calls, env.num_envs, players, most, reads_costs)
            self._built_for = key
            self.compiles += 1
        return self._program

    @property
    def _functional(self) -> FunctionalBatch:
        env = self._envs.env
        assert isinstance(env, FunctionalBatch), "the pool makes the same again"
        return env

    def _players(self) -> list[Player]:
        entry_of = self.lanes.entry_of.reshape(-1, self.lanes.stride)
        players = []
        for number, slots in enumerate(self._policy_slots):
            played = np.flatnonzero((entry_of == number).any(0))
            if not len(played):
                continue
            start = getattr(slots.spaces.action, "start", 0)
            players.append(
                Player(
                    number,
                    self._actors[number],
                    tuple(played.tolist()),
                    slots.buffer is not None,
                    slots.spaces.masked,
                    slots.sees_state,
                    np.asarray(start, np.int32) if np.any(start) else 0,
                )
            )
        return players

    def _live(self, program: FragmentProgram) -> Live:
        num_envs, stride = len(self._env_indices), self.lanes.stride
        memories = []
        for player in program.players:
            memory = self._policy_slots[player.number].memory
            lanes = self._lanes_of_player(program, player)
            memories.append(None if memory is None else jnp.asarray(memory.recall(lanes)))
        return Live(
            carry=self._functional.carry,
            running=jnp.asarray(self._is_running),
            alive=jnp.asarray(self._alive.reshape(num_envs, stride)),
            decides=jnp.asarray(self._decides.reshape(num_envs, stride)),
            t_agent=jnp.asarray(self.lanes.t_agent.reshape(num_envs, stride), jnp.int32),
            keys=bits64(self.lanes.keys.reshape(num_envs, stride)),
            following=self._next_numbers().astype(np.uint32),
            left=np.full(num_envs, _NO_LIMIT, np.int32),
            seat=np.zeros(num_envs, np.int32),
            memories=tuple(memories),
        )

    def _inputs(self, program: FragmentProgram, count: int) -> Inputs:
        return Inputs(
            given=tuple(player.actor.given() for player in program.players),
            streams=bits64(keys(self._seed, self._env_indices)),
            env_indices=self._env_indices.astype(np.int32),
            entries=self.lanes.entry_of.reshape(-1, 1, self.lanes.stride).astype(np.int32),
            count=np.int32(count),
        )

    def _lanes_of_player(self, program: FragmentProgram, player: Player) -> Array:
        """Return the lanes of a player's slots, [B, C], in the order of its rows."""
        return np.arange(len(self._env_indices))[:, None] * self.lanes.stride + program.order(player)

    def _land(self, program: FragmentProgram, after: Live, columns: Columns) -> None:
        """Take over what a call gave: rows, results, faults, and the state of all environments."""
        broken = self._broken(program, columns)
        masked = self._masked(columns, broken)
        self._count(masked)
        cells, ends = self._rows_of.add_ticks(masked)
        self._write(program, columns, masked, cells)
        self._end(program, columns, masked, ends)
        self._finish_episodes(columns, masked, broken)
        self._take_over(program, after, columns, masked, broken)

    def _count(self, ticks: Ticks) -> None:
        self.agent_steps += int(np.count_nonzero(ticks.decided))

    # ---- what broke ----

    def _broken(self, program: FragmentProgram, columns: Columns) -> dict[int, _Break]:
        """Return the environments that broke, with when."""
        stride = self.lanes.stride
        broken: dict[int, _Break] = {}

        def add(tick: int, index: int, is_after: bool, agent: int | None, reason: str) -> None:
            known = broken.get(index)
            stop = tick + 1 if is_after else tick
            if known is None or stop < known.stop:
                steps = int(columns.env_steps[tick, index]) + is_after
                broken[index] = _Break(stop, is_after, self._failure_at(columns, index, tick, steps, agent, reason))

        amounts = [("reward", columns.rewards)] + ([("cost", columns.costs)] if self._envs.reads_costs else [])
        reads_costs = self.lanes.reads_costs.reshape(-1, stride)
        for what, array in amounts:
            wrong = ~np.isfinite(array) & columns.running[..., None]
            if what == "cost":
                wrong &= reads_costs
            for tick, index, slot in zip(*np.nonzero(wrong), strict=True):
                reason = f"the {what} is {float(array[tick, index, slot])}, not a finite number"
                add(tick, index, True, int(slot), reason)
        for tick, index in zip(*np.nonzero(columns.is_stuck), strict=True):
            add(tick, index, True, None, NOBODY_DECIDES)
        for number, player in enumerate(program.players):
            self._check_rows(program, player, columns, columns.players[number], add)
        return broken

    def _check_rows(
        self, program: FragmentProgram, player: Player, columns: Columns, rows: Mapping[str, Array], add: Any
    ) -> None:
        unsound = rows["active"] & ~rows["is_sound"]
        slots = self._policy_slots[player.number]
        if not player.is_recorded:
            if unsound.any():
                raise MarlflowError(_NO_CHOICE)
            return
        index_of, slot_of = self._places(program, player, columns)
        active = np.argwhere(rows["active"])
        obs = _taken(rows["obs"], rows["active"])
        start = 0
        while start < len(obs):
            try:
                slots.stack(obs[start:])
                break
            except ObservationOutside as outside:
                tick, row = active[start + outside.index]
                add(int(tick), int(index_of[tick, row]), False, int(slot_of[tick, row]), f"the {outside.reason}")
                unsound[tick, row] = False
                start += outside.index + 1
        if "action_mask" in rows:
            illegal = rows["active"] & ~rows["action_mask"].any(-1)
            for tick, row in np.argwhere(illegal):
                reason = "the action_mask allows no action"
                add(int(tick), int(index_of[tick, row]), False, int(slot_of[tick, row]), reason)
                unsound[tick, row] = False
        if unsound.any():
            raise MarlflowError(_NO_CHOICE)

    def _failure_at(
        self, columns: Columns, index: int, tick: int, env_steps: int, agent: int | None, reason: str
    ) -> EnvironmentFailed:
        episode = int(self._episode_numbers(columns)[tick, index])
        seed = self._training.seeds(np.array([index]), np.array([episode % 2**40]))
        self._envs.seeds[index], self._envs.env_steps[index] = seed[0], env_steps
        return EnvironmentFailed(self._envs.where(index, None if agent is None else self._agents[agent]), reason)

    # ---- whole arrays ----

    def _masked(self, columns: Columns, broken: Mapping[int, _Break]) -> Ticks:
        """Return what counts, by lane: nothing of an environment after it broke."""
        count, num_envs = columns.running.shape
        running = columns.running.copy()
        ended = columns.ended.copy()
        rewards = np.where(running[..., None], columns.rewards, 0.0).astype(np.float64)
        costs = None
        if self._envs.reads_costs:
            is_read = running[..., None] & self.lanes.reads_costs.reshape(num_envs, -1)
            costs = np.where(is_read, columns.costs, 0.0).astype(np.float64)
        for index, (stop, is_after, _) in broken.items():
            running[stop:, index] = False
            last = stop - 1 if is_after else stop
            ended[last:, index] = False
            for amounts in (rewards,) if costs is None else (rewards, costs):
                amounts[last:, index] = 0.0
        columns.running[:] = running
        by_lane = (count, -1)
        return Ticks(
            (columns.decided & running[..., None]).reshape(by_lane),
            ended.reshape(by_lane),
            np.repeat(columns.env_steps, self.lanes.stride, axis=1),
            columns.t_agent.reshape(by_lane),
            rewards.reshape(by_lane),
            None if costs is None else costs.reshape(by_lane),
            np.broadcast_to(self.lanes.entry_of, (count, num_envs * self.lanes.stride)),
        )

    def _episode_numbers(self, columns: Columns) -> Array:
        """Return the number of each environment's episode in each tick, [T, B]."""
        begun = _before(columns.begun)
        return np.where(begun == 0, self.lanes.episode[:: self.lanes.stride], self._next_numbers() + begun - 1)

    def _places(self, program: FragmentProgram, player: Player, columns: Columns) -> tuple[Array, Array]:
        """Return the environment and the agent slot of each of a player's rows, [T, rows]."""
        num_envs, order = len(self._env_indices), program.order(player)
        if self._functional.turn_based:
            index = np.broadcast_to(np.arange(num_envs), columns.mover.shape)
            return index, columns.mover
        index, slot = np.repeat(np.arange(num_envs), len(order)), np.tile(order, num_envs)
        shape = (len(columns.running), len(index))
        return np.broadcast_to(index, shape), np.broadcast_to(slot, shape)

    def _write(self, program: FragmentProgram, columns: Columns, ticks: Ticks, cells: Array) -> None:
        """Write the rows of all players into their buffers."""
        stride = self.lanes.stride
        for number, player in enumerate(program.players):
            slots, rows = self._policy_slots[player.number], columns.players[number]
            if slots.buffer is None:
                continue
            index, slot = self._places(program, player, columns)
            lanes = index * stride + slot
            active = rows["active"] & np.take_along_axis(ticks.decided, lanes, 1)
            which = np.nonzero(active)
            lanes, at = lanes[which], cells[which[0], lanes[which]]
            seen = {"obs": slots.stack(_taken(rows["obs"], active))}
            if slots.spaces.masked:
                seen["action_mask"] = _taken(rows["action_mask"], active)
            if player.sees_state:
                seen["state"] = columns.states[which[0], index[which]]
            if slots.memory is not None:
                versions = np.full(len(lanes), slots.version)
                # The memory of a lane's first row in a running episode was computed before this call.
                first = np.unique(lanes, return_index=True)[1]
                first = first[_before(columns.begun)[which[0][first], index[which][first]] == 0]
                earlier = slots.memory.state(lanes[first])["made_by"]
                versions[first] = np.where(earlier < 0, slots.version, earlier)
                seen |= {"memory": _taken(rows["memory"], active), "memory_version": versions}
            action, logp = (_taken(rows[name], active) for name in ("action", "behavior_logp"))
            slots.buffer.write(self.lanes.row_of[lanes], at, seen, action, logp)

    def _end(self, program: FragmentProgram, columns: Columns, ticks: Ticks, ends: EndsOfRows) -> None:
        """Hand the segments that ended to their policies, with final observations."""
        index, slot = np.divmod(ends.lane, self.lanes.stride)
        place = columns.final_at[ends.tick, index]
        terminated = columns.terminated[ends.tick, index, slot]
        episode = self._episode_numbers(columns)[ends.tick, index]
        entry = ticks.entry_of[ends.tick, ends.lane]
        for player in program.players:
            slots = self._policy_slots[player.number]
            at = np.flatnonzero(entry == player.number)
            if slots.buffer is None or not len(at):
                continue
            seen = self._finals(program, player, columns.finals, place[at], slot[at])
            segments = Segments(
                self.lanes.row_of[ends.lane[at]],
                ends.start[at],
                ends.stop[at],
                terminated[at],
                ~terminated[at],
                ends.carried[at],
                episode[at],
                seen,
            )
            self._rows_of.add_segments(slots.policy, segments, ends.lane[at])

    def _finals(
        self, program: FragmentProgram, player: Player, finals: Mapping[str, Array], place: Array, slot: Array
    ) -> dict[str, Array]:
        slots = self._policy_slots[player.number]
        seen: dict[str, Array] = {}
        for name in ("obs", "action_mask") if slots.spaces.masked else ("obs",):
            found: Array | None = None
            for group, agents in program.calls.groups.items():
                numbers = np.array([self._agents.index(agent) for agent in agents])
                here = np.flatnonzero(np.isin(slot, numbers))
                if not len(here):
                    continue
                array = finals.get(f"{name}.{group}")
                width = () if array is not None else (slots.spaces.mask_width,)
                position = np.searchsorted(numbers, slot[here])
                rows = np.ones((len(here), *width), bool) if array is None else array[place[here], position]
                if found is None:
                    found = np.empty((len(slot), *rows.shape[1:]), rows.dtype)
                found[here] = rows
            assert found is not None, "every slot is in a group"
            seen[name] = found
        seen["obs"] = slots.stack(seen["obs"])
        if "action_mask" in seen:
            # Without a legal action, a final mask says nothing.
            seen["action_mask"][~seen["action_mask"].any(1)] = True
        if player.sees_state:
            seen["state"] = finals["state"][place]
        if slots.memory is not None:
            column = np.zeros(self.lanes.stride, np.int64)
            column[program.order(player)] = np.arange(len(player.slots))
            seen["memory"] = finals[f"memory.{player.number}"][place, column[slot]]
        return seen

    # ---- episodes and state ----

    def _finish_episodes(self, columns: Columns, ticks: Ticks, broken: Mapping[int, _Break]) -> None:
        """Report the episodes that have ended, and add up the returns of those that go on."""
        lanes, stride = self.lanes, self.lanes.stride
        count, num_envs = columns.running.shape
        begun = _before(columns.begun)
        number = np.repeat(begun, stride, axis=1) * (num_envs * stride) + np.arange(num_envs * stride)
        most = int(begun.max(initial=0)) + 2
        totals = []
        for carried, amounts in ((lanes.returns, ticks.rewards), (lanes.costs, ticks.costs)):
            if amounts is None:
                totals.append(np.zeros((most, num_envs, stride)))
                continue
            whole, where = np.concatenate([carried[None], amounts]), np.concatenate([number[:1] * 0, number])
            where[0] = np.arange(num_envs * stride)
            sums = np.bincount(where.ravel(), whole.ravel(), minlength=most * num_envs * stride)
            totals.append(sums.reshape(most, num_envs, stride))
        returns, costs = totals
        over = columns.over & columns.running
        for index, (stop, is_after, _) in broken.items():
            over[stop - 1 if is_after else stop :, index] = False
        episodes = self._episode_numbers(columns)
        truncated = (columns.ended & ~columns.terminated).any(2)
        when, index = np.nonzero(over)
        number = begun[when, index]
        ended = Ended(
            index,
            truncated[when, index],
            self.ticks + 1 + when,
            episodes[when, index],
            columns.env_steps[when, index] + 1,
            returns[number, index],
            costs[number, index],
        )
        self.results += results_of(ended, lanes, self._envs)
        self._rows_of.end_episode(np.flatnonzero(np.repeat(over[-1], stride)))
        last = begun[-1] + columns.begun[-1]
        lanes.returns[:] = returns[last, np.arange(num_envs)].reshape(-1)
        lanes.costs[:] = costs[last, np.arange(num_envs)].reshape(-1)
        self.env_steps += int(np.count_nonzero(columns.running))
        self.ticks += count

    def _take_over(
        self, program: FragmentProgram, after: Live, columns: Columns, ticks: Ticks, broken: Mapping[int, _Break]
    ) -> None:
        """Put the state of all environments where BatchedRunner has it."""
        lanes, stride, envs = self.lanes, self.lanes.stride, self._envs
        for number, player in enumerate(program.players):
            if (memory := self._policy_slots[player.number].memory) is not None:
                self._remember(program, player, memory, np.asarray(after.memories[number]), columns, ticks)
        self._functional.carry = after.carry
        episodes, begun = self._episode_numbers(columns), columns.begun.sum(0)
        current = np.where(begun > 0, self._next_numbers() + begun - 1, lanes.episode[::stride])
        for index, (stop, is_after, _) in broken.items():
            # Later episodes are taken back.
            current[index] = episodes[stop - 1 if is_after else stop, index]
            begun[index] = max(0, current[index] - self._next_numbers()[index] + 1) if current[index] < 2**40 else 0
        self._training.advance(begun)
        lanes.episode[:] = np.repeat(current, stride)
        lanes.t_agent[:] = np.asarray(after.t_agent).reshape(-1)
        lanes.keys[:] = uint64(after.keys).reshape(-1)
        envs.env_steps[:] = np.asarray(after.carry.env_steps)
        fresh = np.flatnonzero(begun)
        envs.seeds[fresh] = self._training.seeds(fresh, current[fresh])
        self._is_running[:] = np.asarray(after.running)
        self._alive[:] = np.asarray(after.alive).reshape(-1)
        self._decides[:] = (np.asarray(after.decides) & self._is_running[:, None]).reshape(-1)
        for index in sorted(broken):
            self._discard(index, broken[index].failure)
            self._is_running[index] = False
            self._decides[lanes.of(index)] = self._alive[lanes.of(index)] = False
        self._latest.start(envs.look())
        self._gather(steady=False)

    def _next_numbers(self) -> Array:
        following = self._training.next_episodes
        return np.array([following[int(env)] for env in self._env_indices])

    def _remember(
        self, program: FragmentProgram, player: Player, memory: Memory, now: Array, columns: Columns, ticks: Ticks
    ) -> None:
        """Keep a player's memories, with the version that computed each."""
        slots, lanes, begun = self._policy_slots[player.number], self._lanes_of_player(program, player), columns.begun
        is_last = _before(begun) == begun.sum(0)
        acted = ticks.decided.reshape(*begun.shape, -1) & is_last[..., None]
        flat = lanes.reshape(-1)
        earlier = np.where(np.repeat(begun.any(0), lanes.shape[1]), -1, memory.state(flat)["made_by"])
        versions = np.where(acted.any(0).reshape(-1)[flat], slots.version, earlier)
        memory.load_state(flat, {"now": now.reshape(-1, *now.shape[2:]), "made_by": versions})


_NO_CHOICE = "cannot choose an action: a row has no legal action, or the network's output is not finite"


def _numpy(columns: Columns, count: int) -> Columns:
    """Return the columns of the ticks that were taken, as numpy arrays."""
    finals = {name: np.asarray(array) for name, array in columns.finals.items()}
    taken = jax.tree_util.tree_map(
        lambda array: np.asarray(array)[:count], columns._replace(count=(), finals=())
    )
    found: Columns = taken._replace(count=count, finals=finals, running=taken.running.copy())
    return found


def _before(begun: Array) -> Array:
    """Return how many episodes have begun before each tick, [T, B]."""
    counted: Array = np.cumsum(begun, axis=0) - begun
    return counted


def _taken(column: Array, where: Array) -> Array:
    """Return the rows of a column [T, rows, ...] `where` [T, rows] is true; not copied if that is everywhere."""
    return column.reshape(-1, *column.shape[2:]) if where.all() else column[where]
