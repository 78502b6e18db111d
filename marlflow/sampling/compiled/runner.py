"""The environment loop of a worker whose fragments are compiled calls: their columns become rows by whole arrays.

Between two calls all state is where single steps keep it, so that the same code saves, resumes and restarts it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import EnvironmentFailed, NotCompiled
from marlflow.base.random import keys
from marlflow.compiled.counter_random import bits64, uint64
from marlflow.env.batched.protocol import info_keys
from marlflow.env.functional.batch import FunctionalBatch
from marlflow.policy.compiled_actor import CompiledActor, Given, StackedMember
from marlflow.sampling.acting_policy import ActingPolicy, Memory
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.compiled.call import Break, TickColumns, breaks_in, seating, taken
from marlflow.sampling.compiled.program import CallInputs, Columns, FragmentProgram, Live, Player
from marlflow.sampling.episodes import RESTARTED_EPISODE, TrainingEpisodes
from marlflow.sampling.lanes import NO_EPISODE, Lanes
from marlflow.sampling.receipts import CompiledCalls
from marlflow.sampling.runner import Ended, Runner, results_of
from marlflow.sampling.segment_builder import EndsOfRows, SegmentBuilder, Ticks
from marlflow.sampling.step_buffer import Segments
from marlflow.sampling.weights_table import FrozenCohort

_FEWEST_MEMBERS = 16
_NOTE = "rollouts are compiled: environments, policies and resets of a fragment are one call"


class _Compiled(NamedTuple):
    program: FragmentProgram
    run: Callable[[Live, CallInputs], tuple[Live, Columns]]


class CompiledRunner(Runner):
    """Steps `envs` by `run`, which calls one program for many ticks; no episode seats `unseated` policies.

    Raises NotCompiled if the environments or the actor of a policy that may be seated cannot be compiled.
    """

    def __init__(
        self,
        envs: BatchedEnvPool,
        lanes: Lanes,
        episodes: TrainingEpisodes,
        builder: SegmentBuilder,
        seed: int,
        unseated: Collection[str] = (),
    ) -> None:
        super().__init__(envs, lanes, episodes, builder)
        for column in envs.columns.in_rows:
            if column.key not in info_keys(envs.env):
                raise NotCompiled(f"its steps have no infos[{column.key!r}]")
        self._batch, self._agents = envs, list(envs.first.agents)
        self._rows_of, self._seed, self._training = builder, seed, episodes
        self._unseated = {n for n, acting in enumerate(self._acting_policies) if acting.policy in unseated}
        self._actors = {
            number: CompiledActor(acting.actor, acting.spaces.observation)
            for number, acting in enumerate(self._acting_policies)
            if number not in self._unseated
        }
        # By the number of a cohort: a key, the frozen policies whose parameters are stacked, and these parameters.
        self._stacked: dict[int, tuple[Any, Any, Given]] = {}
        self._fitting: dict[tuple[str, int], bool] = {}
        self._seating = seating(lanes, episodes, self._agents, self._fits, 0, 1)
        self._room = 1
        self._programs: dict[tuple[Any, ...], _Compiled] = {}
        self.compiled = CompiledCalls(note=_NOTE)
        self._is_compiled = True

    def run(self, ticks: int, is_late: Callable[[], bool]) -> None:
        """Take `ticks` env steps in every environment, by one call or a few.

        From the first call on that cannot be compiled any more, all are single steps.
        """
        rest = ticks
        while rest > 0 and not self.idle and self._is_compiled:
            try:
                rest -= self._call(ticks, rest)
            except NotCompiled as error:
                # Nothing has happened yet: single steps continue where the last call ended.
                self._is_compiled = False
                self.compiled = replace(self.compiled, note=f"rollouts are not compiled any more: {error}")
                break
            # Environments that broke begin again.
            self.begin()
            if is_late():
                return
        super().run(rest, is_late)

    def _call(self, most: int, count: int) -> int:
        """Take up to `count` ticks by one call; return how many."""
        self._seating = seating(self.lanes, self._training, self._agents, self._fits, most, self._room)
        self._room = self._seating.entries.shape[1]
        program, run = self._program_for(most)
        began = perf_counter()
        live, inputs = self._live(program), self._inputs(program, count)
        after, columns = self._batch.guarded(lambda: jax.block_until_ready(run(live, inputs)), "a compiled call")
        self._batch.env_s += perf_counter() - began
        self._land(program, after, columns)
        return int(columns.count)

    def _program_for(self, most: int) -> _Compiled:
        players = self._players()
        key = (self._room, *((player.number, player.slots, player.members) for player in players))
        found = self._programs.get(key)
        if found is None or found.program.ticks < most:
            # The first program has exactly the size of the run's rounds; larger programs come in few sizes.
            ticks = most if found is None else 1 << (most - 1).bit_length()
            env = self._functional
            settled = env.calls, env.num_envs, self._envs.columns, self._seating.is_dealt
            found = self._programs[key] = self._compiled(FragmentProgram(*settled, players, ticks))
        return found

    def _compiled(self, program: FragmentProgram) -> _Compiled:
        began, before = perf_counter(), self.compiled
        live, inputs = self._live(program), self._inputs(program, 0)
        run = self._batch.guarded(lambda: program.run.lower(live, inputs).compile(), "compiling")
        compile_s = before.compile_s + perf_counter() - began
        self.compiled = CompiledCalls(before.compiles + 1, compile_s, before.note)
        return _Compiled(program, run)

    @property
    def _functional(self) -> FunctionalBatch:
        env: Any = self._batch.env
        if type(env) is not FunctionalBatch:
            raise NotCompiled("the environment is no functional one")
        return env

    def _players(self) -> list[Player]:
        """Return all acting policies of the next call, by number."""
        entry_of = self.lanes.entry_of.reshape(-1, self.lanes.stride)
        players = []
        for number, acting in enumerate(self._acting_policies):
            if number in self._unseated:
                continue
            played = [
                slot
                for slot, agent in enumerate(self._agents)
                if (self._fits(agent, number) if self._seating.is_dealt else (entry_of[:, slot] == number).any())
            ]
            if played:
                players.append(self._player(number, acting, tuple(played)))
        return players

    def _fits(self, agent: str, number: int) -> bool:
        """Return whether an agent has the spaces of the acting policy `number`."""
        if (found := self._fitting.get((agent, number))) is None:
            first, of_policy = self._envs.first, self._acting_policies[number].spaces
            of_agent = first.observation_space(agent), first.action_space(agent)
            found = self._fitting[agent, number] = of_agent == (of_policy.observation, of_policy.action)
        return found

    def _player(self, number: int, acting: ActingPolicy, played: tuple[int, ...]) -> Player:
        if number not in self._actors:
            self._actors[number] = CompiledActor(acting.actor, acting.spaces.observation)
        start, members = getattr(acting.spaces.action, "start", 0), 0
        if isinstance(acting, FrozenCohort):
            most = max(acting.members.in_slots(), default=0)
            members = _capacity(most + 1, _FEWEST_MEMBERS)
        return Player(
            number,
            self._actors[number],
            played,
            acting.buffer is not None,
            acting.spaces.masked,
            acting.sees_state,
            members,
            np.asarray(start, np.int32) if np.any(start) else 0,
        )

    def _live(self, program: FragmentProgram) -> Live:
        num_envs, stride = len(self._env_indices), self.lanes.stride
        memories = []
        for player in program.players:
            memory = self._acting_policies[player.number].memory
            lanes = self._lanes_of_player(program, player)
            memories.append(None if memory is None else jnp.asarray(memory.recall(lanes)))
        return Live(
            carry=self._functional.carry,
            running=self._batch.is_running,
            alive=self._batch.alive.reshape(num_envs, stride),
            decides=self._batch.decides.reshape(num_envs, stride),
            t_agent=self.lanes.t_agent.reshape(num_envs, stride).astype(np.int32),
            keys=bits64(self.lanes.keys.reshape(num_envs, stride)),
            following=self._next_numbers().astype(np.uint32),
            left=self._seating.left.astype(np.int32),
            seat=np.zeros(num_envs, np.int32),
            memories=tuple(memories),
        )

    def _inputs(self, program: FragmentProgram, count: int) -> CallInputs:
        return CallInputs(
            given=tuple(map(self._given, program.players)),
            streams=bits64(keys(self._seed, self._env_indices)),
            env_indices=self._env_indices.astype(np.int32),
            entries=self._seating.entries.astype(np.int32),
            members=self._seating.members.astype(np.int32),
            count=np.int32(count),
        )

    def _given(self, player: Player) -> Given:
        acting = self._acting_policies[player.number]
        if not isinstance(acting, FrozenCohort):
            return player.actor.given()
        in_slots = acting.members.in_slots()
        key = player.members, *((slot, id(frozen)) for slot, frozen in in_slots.items())
        known = self._stacked.get(player.number)
        if known is None or known[0] != key:
            members: list[StackedMember | None] = [None] * player.members
            for slot, frozen in in_slots.items():
                members[slot] = StackedMember(frozen.weights.flat, frozen.scheduled)
            # The frozen policies are kept, so that no other object gets the same id().
            known = self._stacked[player.number] = key, list(in_slots.values()), player.actor.stacked(members)
        return known[2]

    def _lanes_of_player(self, program: FragmentProgram, player: Player) -> Array:
        """Return the lanes of a player's slots, [B, C], in the order of its rows."""
        return np.arange(len(self._env_indices))[:, None] * self.lanes.stride + program.order(player)

    def _land(self, program: FragmentProgram, after: Live, columns: Columns) -> None:
        """Take over the results of a call: rows, episode results, faults, and the state of all environments."""
        fragment = TickColumns(program, columns, self.lanes, self._next_numbers(), self._seating)
        broken = breaks_in(fragment, lambda player: self._acting_policies[player.number], self._failure_of)
        running, ticks = fragment.counted(broken)
        self.env_steps += int(np.count_nonzero(running))
        self.agent_steps += int(np.count_nonzero(ticks.decided))
        cells, ends = self._rows_of.add_ticks(ticks)
        self._write(fragment, ticks, cells)
        self._end_rows(fragment, ticks, ends)
        self._finish_episodes(fragment, ticks, running, broken)
        self._take_over(fragment, after, ticks, broken)

    def _next_numbers(self) -> Array:
        """Return the number of each environment's next episode, int64 [B]."""
        following = self._training.next_episodes
        return np.array([following[int(env)] for env in self._env_indices])

    def _failure_of(self, index: int, slot: int | None, episode: int, env_steps: int, reason: str) -> EnvironmentFailed:
        number = np.array([episode % RESTARTED_EPISODE])
        self._batch.seeds[index] = self._training.seeds(np.array([index]), number)[0]
        self._batch.env_steps[index] = env_steps
        return self._batch.failure(index, slot, reason)

    def _write(self, fragment: TickColumns, ticks: Ticks, cells: Array) -> None:
        """Write the rows of all players into their buffers."""
        columns = fragment.columns
        for number, player in enumerate(fragment.program.players):
            acting, rows = self._acting_policies[player.number], columns.players[number]
            if acting.buffer is None:
                continue
            index, slot = fragment.places(player)
            lanes = index * self.lanes.stride + slot
            active = rows["active"] & np.take_along_axis(ticks.decided, lanes, 1)
            tick, _ = which = np.nonzero(active)
            index, lanes = index[which], lanes[which]
            seen = {"obs": acting.stack(taken(rows["obs"], active))}
            if acting.spaces.masked:
                seen["action_mask"] = taken(rows["action_mask"], active)
            if player.sees_state:
                seen["state"] = columns.states[tick, index]
            if acting.memory is not None:
                versions = np.full(len(lanes), acting.version)
                # The memory of a lane's first row, in an episode from before, was computed before this call.
                first = np.unique(lanes, return_index=True)[1]
                first = first[fragment.begun_before[tick[first], index[first]] == 0]
                earlier = acting.memory.state(lanes[first])["made_by"]
                versions[first] = np.where(earlier < 0, acting.version, earlier)
                seen |= {"memory": taken(rows["memory"], active), "memory_version": versions}
            action, logp = (taken(rows[name], active) for name in ("action", "behavior_logp"))
            acting.buffer.write(acting.buffer.rows_of(lanes), cells[tick, lanes], seen, action, logp)

    def _end_rows(self, fragment: TickColumns, ticks: Ticks, ends: EndsOfRows) -> None:
        """Hand the segments that ended to their policies, with final observations."""
        index, slot = np.divmod(ends.lane, self.lanes.stride)
        terminated = fragment.columns.terminated[ends.tick, index, slot]
        entry = ticks.entry_of[ends.tick, ends.lane]
        for player in fragment.program.players:
            acting, at = self._acting_policies[player.number], np.flatnonzero(entry == player.number)
            if acting.buffer is None or not len(at):
                continue
            place = fragment.columns.final_at[ends.tick[at], index[at]]
            rows, seen = acting.buffer.rows_of(ends.lane[at]), self._seen_at_end(fragment, player, place, slot[at])
            if "action_mask" in seen:
                seen["action_mask"] = acting.buffer.legal_after(rows, ends.stop[at] - 1, seen["action_mask"])
            segments = Segments(
                rows,
                ends.start[at],
                ends.stop[at],
                terminated[at],
                ~terminated[at],
                ends.carried[at],
                fragment.episode[ends.tick[at], index[at]],
                seen,
            )
            self._rows_of.add_segments(acting.policy, segments, ends.lane[at])

    def _seen_at_end(self, fragment: TickColumns, player: Player, place: Array, slot: Array) -> dict[str, Array]:
        acting, program, finals = self._acting_policies[player.number], fragment.program, fragment.finals
        obs = program.final_rows("obs", finals, place, slot)
        assert obs is not None, "observations are kept"
        seen = {"obs": acting.stack(obs)}
        if acting.spaces.masked:
            masks = program.final_rows("action_mask", finals, place, slot)
            seen["action_mask"] = np.ones((len(slot), acting.spaces.mask_width), bool) if masks is None else masks
        if player.sees_state:
            seen["state"] = finals["state"][place]
        if acting.memory is not None:
            seen["memory"] = finals[f"memory.{player.number}"][place, program.column(player)[slot]]
        return seen

    def _finish_episodes(
        self, fragment: TickColumns, ticks: Ticks, running: Array, broken: Mapping[int, Break]
    ) -> None:
        """Report finished episodes, and add up the returns of running ones."""
        lanes, columns = self.lanes, fragment.columns
        over = columns.over & running
        for broken_env, broke in broken.items():
            over[broke.tick :, broken_env] = False
        returns = fragment.totals(lanes.returns, ticks.rewards)
        lanes.has_infos = bool(columns.infos)
        infos = fragment.infos(ticks) if lanes.has_infos else None
        when, index = np.nonzero(over)
        number = fragment.begun_before[when, index]
        was_truncated = (columns.ended & ~columns.terminated).any(2)
        ended = Ended(
            index.tolist(),
            was_truncated[when, index].tolist(),
            (self.ticks + 1 + when).tolist(),
            fragment.episode[when, index].tolist(),
            (columns.env_steps[when, index] + 1).tolist(),
            returns[number, index].tolist(),
        )
        of_ended_infos = None if infos is None else infos[:, number, index]
        self.results += results_of(ended, self._envs, fragment.matchups(when, index), of_ended_infos)
        last = fragment.begun, np.arange(fragment.num_envs)
        lanes.returns[:] = returns[last].reshape(-1)
        if infos is not None:
            lanes.infos[:] = infos[:, *last].reshape(len(infos), -1)
        self.ticks += fragment.ticks

    def _take_over(self, fragment: TickColumns, after: Live, ticks: Ticks, broken: Mapping[int, Break]) -> None:
        """Write the state of all environments to where single steps keep it."""
        lanes, envs = self.lanes, self._batch
        for number, player in enumerate(fragment.program.players):
            if (memory := self._acting_policies[player.number].memory) is not None:
                self._remember(fragment, player, memory, np.asarray(after.memories[number]), ticks)
        self._functional.continue_with(after.carry)
        current, begun = fragment.last_episode.copy(), fragment.begun.copy()
        for index, broke in broken.items():
            # Later episodes are taken back.
            current[index] = fragment.episode[broke.tick, index]
            begun[index] = fragment.begun_before[broke.tick, index]
        self._training.advance(begun)
        self._seating.take_over(lanes, begun)
        lanes.episode[:] = np.repeat(current, lanes.stride)
        lanes.t_agent[:] = np.asarray(after.t_agent).reshape(-1)
        lanes.keys[:] = uint64(after.keys).reshape(-1)
        fresh = np.flatnonzero(begun)
        envs.seeds[fresh] = self._training.seeds(fresh, current[fresh])
        envs.env_steps[:] = np.asarray(after.carry.env_steps)
        envs.take_over(*(np.asarray(of) for of in (after.running, after.alive, after.decides)))
        self._discard({index: broke.failure for index, broke in broken.items()})
        envs.halt(np.array(sorted(broken), np.int64))
        # Without a next matchup, an environment waits.
        lanes.episode[~np.repeat(envs.is_running, lanes.stride)] = NO_EPISODE
        self._gather(steady=False)

    def _remember(self, fragment: TickColumns, player: Player, memory: Memory, now: Array, ticks: Ticks) -> None:
        """Keep a player's memories, with the version that computed each."""
        acting, lanes = self._acting_policies[player.number], self._lanes_of_player(fragment.program, player)
        is_last = fragment.begun_before == fragment.begun
        entry_of = ticks.entry_of.reshape(*is_last.shape, -1)
        acted = ticks.decided.reshape(entry_of.shape) & is_last[..., None] & (entry_of == player.number)
        flat = lanes.reshape(-1)
        earlier = np.where(np.repeat(fragment.begun > 0, lanes.shape[1]), -1, memory.state(flat)["made_by"])
        versions = np.where(acted.any(0).reshape(-1)[flat], acting.version, earlier)
        memory.load_state(flat, {"now": now.reshape(-1, *now.shape[2:]), "made_by": versions})


def _capacity(needed: int, least: int) -> int:
    """Return `least` times the least power of four that is enough, because each size is a program."""
    while least < needed:
        least *= 4
    return least
